"""`triptych capacity`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triptych.cli.capacity import Attention, run_capacity, to_flags
from triptych.cli.plan import Dtype

app = typer.Typer(add_completion=False)


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
