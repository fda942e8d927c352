"""The sub-commands and their options; what they do is in the modules beside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triptych.cli.capacity import Attention, run_capacity, to_flags
from triptych.cli.chat import PolicyName, make_policy, run_chat
from triptych.cli.demo import run_demo
from triptych.cli.door import Address, ApiKey, TlsCa, TlsCert, TlsKey, UseTls, open_door
from triptych.cli.explain import run_explain
from triptych.cli.images import run_images
from triptych.cli.keys import run_new_key
from triptych.cli.lab import lab
from triptych.cli.lint import run_lint
from triptych.cli.plan import ClusterOptions, Dtype, LogLevel, Topology, default_model
from triptych.cli.probe import is_serving
from triptych.cli.top import run_top
from triptych.cli.up import run_up
from triptych.errors import UnavailableError
from triptych.version import VERSION

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
keys = typer.Typer(no_args_is_help=True, help="API keys for a router's keys file.")
app.add_typer(keys, name="keys")

ROUTER = "127.0.0.1:50051"
app.add_typer(lab, name="lab")

Model = Annotated[Path | None, typer.Option(help="checkpoint directory; unset: $TRIPTYCH_MODEL, else the demo's")]
Count = typer.Option(min=1, help="how many of them")
Redis = Annotated[str | None, typer.Option(help="redis:// URL to use instead of an embedded Valkey")]
Quiet = Annotated[bool, typer.Option("--quiet", help="leave out the log of the parts")]
Log = Annotated[Path | None, typer.Option(help="file for a plain copy of the log", dir_okay=False, writable=True)]


@app.command()
def up(
    model: Model = None,
    prefill: Annotated[int, Count] = 1,
    decode: Annotated[int, Count] = 1,
    encoders: Annotated[int, Count] = 1,
    redis: Redis = None,
    grpc_port: Annotated[int, typer.Option(help="0 picks a free one")] = 50051,
    http_port: Annotated[int, typer.Option(help="0 picks a free one")] = 8000,
    dtype: Annotated[Dtype, typer.Option(help="element type of weights and KV")] = "float32",
    topology: Annotated[Topology, typer.Option(help="stages apart, prefill with decode, or all in one")] = "e-p-d",
    log_level: Annotated[LogLevel, typer.Option(help="least level logged")] = "INFO",
    quiet: Quiet = False,
    log: Log = None,
) -> None:
    """Start a whole cluster on this machine and keep it running until Ctrl-C."""
    path = model or default_model()
    options = ClusterOptions(
        path, prefill, decode, encoders, redis, grpc_port, http_port, dtype, topology, log_level=log_level
    )
    run_up(options, quiet, log)


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


@app.command()
def images(
    address: Address = ROUTER,
    cache_salt: Annotated[str | None, typer.Option(help="scope, as in requests; unset: the common one")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="everything as JSON")] = False,
    api_key: ApiKey = None,
    tls: UseTls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """List the pictures that a running cluster knows, and those that look the same but were encoded apart."""
    run_images(open_door(address, api_key, tls, tls_ca, tls_cert, tls_key), cache_salt, as_json=as_json)


@app.command()
def explain(
    last: Annotated[int, typer.Option(min=1, max=512, help="how many requests")] = 20,
    session: Annotated[str, typer.Option(help="only those of this session")] = "",
    address: Address = ROUTER,
    cache_salt: Annotated[str | None, typer.Option(help="scope, as in requests; unset: the common one")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="everything as JSON")] = False,
    api_key: ApiKey = None,
    tls: UseTls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Tell what the caches did for the latest requests, and where and why their prompts diverged."""
    door = open_door(address, api_key, tls, tls_ca, tls_cert, tls_key)
    run_explain(door, last, session, cache_salt, as_json)


@app.command()
def top(
    every: Annotated[float, typer.Option(min=0.1, help="seconds between two frames")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="print one frame and end")] = False,
    address: Address = ROUTER,
    api_key: ApiKey = None,
    tls: UseTls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Show a running cluster live: workers, queue, blocks, hit rates, tokens a second, transfers."""
    run_top(open_door(address, api_key, tls, tls_ca, tls_cert, tls_key), every, once=once)


@app.command("lint-prompt")
def lint_prompt(
    source: Annotated[
        str, typer.Argument(help="OpenAI request as JSON, or several in order, one a line; - is standard input")
    ],
    address: Annotated[str | None, typer.Option(help="host:port of a router that counts the tokens lost")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="all findings as JSON")] = False,
    api_key: ApiKey = None,
    tls: UseTls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Name what in requests would break the prefix cache; ends with status 1 when there is something."""
    door = open_door(address, api_key, tls, tls_ca, tls_cert, tls_key) if address else None
    run_lint(source, door, as_json=as_json)


@keys.command("new")
def new_key(tenant: str) -> None:
    """Make an API key; append the output to the router's keys file with >>."""
    run_new_key(tenant)


@app.command()
def demo(
    model: Model = None, verbose: Annotated[bool, typer.Option("--verbose", help="show the log of the parts")] = False
) -> None:
    """Start a cluster, ask it about several pictures, and show what was encoded and what was reused."""
    run_demo(model or default_model(), quiet=not verbose)


@app.command()
def capacity(
    model: Annotated[Path | None, typer.Option(help="checkpoint directory; its config is enough")] = None,
    shape: Annotated[Path | None, typer.Option(help="shape file of a model that is not served here")] = None,
    device_memory: Annotated[str, typer.Option(help="memory of each device, for example 80GiB")] = "80GiB",
    share: Annotated[float, typer.Option(min=0, max=1, help="part of it that may be used")] = 0.9,
    dtype: Annotated[Dtype, typer.Option(help="element type of weights and KV")] = "bfloat16",
    step_tokens: Annotated[int, typer.Option(min=1, help="prompt tokens of a prefill step")] = 512,
    sequences: Annotated[int, typer.Option(min=1, help="sequences of a decode step")] = 64,
    context: Annotated[int | None, typer.Option(min=1, help="longest sequence; unset: the model's")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="largest pictures encoded at once; unset: a limit")] = None,
    encoder_tokens: Annotated[int, typer.Option(min=1, help="that limit, in visual tokens")] = 4096,
    image_tokens: Annotated[int | None, typer.Option(min=1, help="tokens of the largest picture")] = None,
    attention: Annotated[Attention, typer.Option(help="eager: scores are written to memory")] = "fused",
    device: Annotated[str, typer.Option(help="where to measure: cpu or cuda")] = "cpu",
    measure: Annotated[bool | None, typer.Option(help="unset: if the weights are there and small enough")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="all figures as JSON, sizes in bytes")] = False,
) -> None:
    """Show how much KV fits on a device when the model is split, and when it is not."""
    given = {name: value for name, value in locals().items() if name not in ("measure", "as_json")}
    run_capacity(to_flags(given, measure), as_json=as_json)


@app.command()
def probe(
    address: Annotated[str, typer.Argument(help="host:port of any service")],
    service: Annotated[str, typer.Option(help="part of it, for example liveness; unset: the process")] = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds to wait")] = 5.0,
    tls: UseTls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Exit with 0 when a service is healthy: the health check of containers."""
    door = open_door(address, None, tls, tls_ca, tls_cert, tls_key)
    if not is_serving(address, service, door.tls, timeout):
        raise UnavailableError(f"{service or 'the process'} at {address} is not serving")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(VERSION)
