"""The sub-commands and their options; what they do is in the modules beside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triptych.cli.capacity import Attention, run_capacity, to_flags
from triptych.cli.chat import run_chat
from triptych.cli.demo import run_demo
from triptych.cli.plan import ClusterOptions, Dtype, LogLevel, Topology, default_model
from triptych.cli.up import run_up
from triptych.version import VERSION

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

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
    question: str,
    image: Annotated[list[Path] | None, typer.Option(help="picture shown before the question; repeatable")] = None,
    address: Annotated[str, typer.Option(help="host:port of a router")] = "127.0.0.1:50051",
    model: Annotated[str, typer.Option(help="name of the model; unset: the only one served")] = "",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="longest answer in tokens")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy")] = None,
) -> None:
    """Ask a running cluster a question about pictures."""
    run_chat(question, image or [], address, model, {"max_tokens": max_tokens, "temperature": temperature})


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
def version() -> None:
    """Print the version."""
    typer.echo(VERSION)
