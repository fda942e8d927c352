"""`triptych chat`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triptych.cli.chat import PolicyName, make_policy, run_chat
from triptych.cli.commands.options import ROUTER
from triptych.cli.door import Address, ApiKey, TlsCa, TlsCert, TlsKey, UseTls, open_door

app = typer.Typer(add_completion=False)


@app.command()
def chat(
    questions: Annotated[
        list[str],
        typer.Argument(
            help="turns of one conversation; @PATH words in front are pictures, - reads turns from standard input"
        ),
    ],
    image: Annotated[
        list[Path] | None, typer.Option(help="picture shown before the first question; repeatable")
    ] = None,
    policy: Annotated[
        PolicyName, typer.Option(help="what of the conversation is sent again with each turn")
    ] = "append-only",
    policy_images: Annotated[int, typer.Option(min=1, help="pictures that image-window and roll-over keep")] = 4,
    address: Address = ROUTER,
    model: Annotated[str, typer.Option(help="name of the model; unset: the only one served")] = "",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="longest answer in tokens")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy")] = None,
    api_key: ApiKey = None,
    tls: UseTls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Ask a running cluster about pictures, one turn after the other."""
    door = open_door(address, api_key, tls, tls_ca, tls_cert, tls_key)
    run_chat(
        questions,
        image or [],
        door,
        model,
        make_policy(policy, policy_images),
        {"max_tokens": max_tokens, "temperature": temperature},
    )
