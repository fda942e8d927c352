"""The `triptych` command: which sub-commands there are. Each is loaded when it is asked for; `--help` asks for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

# In the order of `--help`.
NAMES = (
    "up",
    "chat",
    "images",
    "explain",
    "top",
    "lint-prompt",
    "demo",
    "capacity",
    "doctor",
    "probe",
    "version",
    "keys",
    "lab",
)
MODULES = {name: f"triptych.cli.commands.{name.replace('-', '_')}" for name in NAMES}


class _Loading(Mapping[str, Any]):
    """Name -> sub-command, imported at that moment: a health check must not pay for the tables of the others."""

    def __getitem__(self, name: str) -> Any:
        command = get_command(import_module(MODULES[name]).app)
        command.name = name
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


class _Commands(TyperGroup):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = cast("MutableMapping[str, Any]", _Loading())


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


# Typer makes no group of an app without commands of its own, unless it has a callback.
@app.callback()
def _triptych() -> None: ...
