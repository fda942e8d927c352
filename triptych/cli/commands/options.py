"""Options that several sub-commands have, beside those of `triptych.cli.door`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ROUTER = "127.0.0.1:50051"
Model = Annotated[Path | None, typer.Option(help="checkpoint directory; unset: $TRIPTYCH_MODEL, else the demo's")]
Salt = Annotated[str | None, typer.Option(help="scope, as in requests; unset: the common one")]
