"""`triptych lab`: experiments on the caches of a running cluster, or of one started for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from triptych.cli.door import ApiKey, TlsCa, TlsCert, TlsKey, UseTls, open_door
from triptych.cli.lab_options import chosen_groups, chosen_policies, numbers, to_prices
from triptych.cli.lab_runs import OpenAIServer, draw, remake_report, replay_trace, run_on_openai, run_on_triptych
from triptych.lab.material import FOLDER, load_material
from triptych.lab.run import SALT, Plan
from triptych.lab.trace import Shape

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Measure the two caches, and compare with what they must do."
)

Address = Annotated[str | None, typer.Option(help="host:port of a router; unset: a cluster started for it")]
Out = Annotated[Path, typer.Option(help="folder for rows.jsonl and report.html")]
Recorded = Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True)]
Folder = Annotated[Path, typer.Option("--material", help="folder with material.json and its pictures")]
PriceList = Annotated[str, typer.Option(help="uncached,read,creation,completion for a million tokens")]


@app.command()
def run(
    address: Address = None,
    out: Out = Path("lab"),
    material: Folder = FOLDER,
    groups: Annotated[str, typer.Option(help="letters of the pairs to compare")] = "ABCDEFGH",
    policies: Annotated[str, typer.Option(help="policies of the long sessions")] = "append,window,roll-over,references",
    histories: Annotated[str, typer.Option(help="turns of history before a pair's first request")] = "2,4",
    turns: Annotated[int, typer.Option(min=2, help="turns of a session")] = 12,
    repeats: Annotated[int, typer.Option(min=1, help="times everything is repeated, in shuffled order")] = 3,
    openai: Annotated[
        str | None, typer.Option(help="base URL of an OpenAI-compatible server to measure instead")
    ] = None,
    model: Annotated[str, typer.Option(help="model there")] = "",
    salted: Annotated[bool, typer.Option(help="that server knows cache_salt; else the salt opens the prompt")] = False,
    prices: PriceList = "1,0.1,1.25,4",
    api_key: ApiKey = None,
    tls: UseTls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Run the controlled experiment and write its report."""
    plan = Plan(chosen_groups(groups), chosen_policies(policies), numbers(histories), turns, repeats, breaks=(SALT,))
    given, priced = load_material(material), to_prices(prices)
    if openai is None:
        door = open_door(address, api_key, tls, tls_ca, tls_cert, tls_key) if address else None
        run_on_triptych(door, plan, given, priced, out)
    else:
        server = OpenAIServer(openai, model, salted, api_key or os.environ.get("OPENAI_API_KEY") or "none")
        run_on_openai(server, plan, given, priced, out)


@app.command()
def trace(
    path: Path,
    material: Folder = FOLDER,
    sessions: Annotated[int, typer.Option(min=1, help="conversations")] = 20,
    turns: Annotated[int, typer.Option(min=1, help="turns of each")] = 6,
    rate: Annotated[float, typer.Option(min=0.001, help="conversations that begin in a second")] = 0.5,
    think: Annotated[float, typer.Option(min=0.001, help="mean seconds between turns")] = 2.0,
    zipf: Annotated[
        float, typer.Option(min=0, max=50, help="how much some pictures are preferred; 0: not at all")
    ] = 1.0,
    policies: Annotated[str, typer.Option(help="policies, one conversation after the other")] = "append,window",
    seed: Annotated[int, typer.Option(help="equal seeds give equal traces")] = 0,
) -> None:
    """Draw a random trace for `replay`."""
    shape = Shape(sessions, turns, rate, think, zipf, tuple(chosen_policies(policies)), seed)
    typer.echo(draw(path, shape, load_material(material)))


@app.command()
def replay(
    path: Recorded,
    address: Address = None,
    out: Out = Path("lab"),
    material: Folder = FOLDER,
    speed: Annotated[float, typer.Option(min=0.001, help="2: twice as fast as the trace says")] = 1.0,
    prices: PriceList = "1,0.1,1.25,4",
    api_key: ApiKey = None,
    tls: UseTls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Replay a trace open loop and report on it."""
    door = open_door(address, api_key, tls, tls_ca, tls_cert, tls_key) if address else None
    replay_trace(path, door, load_material(material), to_prices(prices), speed, out)


@app.command()
def report(rows: Recorded, out: Annotated[Path, typer.Option(help="page to write")] = Path("report.html")) -> None:
    """Make the report again from recorded rows."""
    remake_report(rows, out)
