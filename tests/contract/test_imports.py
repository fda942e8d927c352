"""What processes may load: the SDK nothing of a server, the router no tensors. Import rules are in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

SERVER_SIDE = {"numpy", "PIL", "pydantic", "ray", "redis", "starlette", "torch", "transformers", "uvicorn"}

COMMANDS = "from triptych.cli.app import MODULES\nfor name in MODULES.values(): __import__(name)"


def loaded_by(statement: str) -> set[str]:
    """Names of all modules after `statement` ran in a process of its own."""
    code = f"import sys\n{statement}\nprint(*(name for name, module in sys.modules.items() if module is not None))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_sdk_works_where_no_part_of_a_server_is_installed() -> None:
    blocked = f"for name in {sorted(SERVER_SIDE | {'common', 'services'})}: sys.modules[name] = None"
    used = f"from triptych import *\nimport triptych.lint\n{COMMANDS}\nClient('127.0.0.1:1').close()"
    assert loaded_by(f"{blocked}\n{used}") & SERVER_SIDE == set()


@pytest.mark.parametrize("statement", ["from triptych import *", COMMANDS], ids=["sdk", "commands"])
def test_the_sdk_needs_no_part_of_a_server(statement: str) -> None:
    assert loaded_by(statement) & SERVER_SIDE == set()


def test_the_command_can_be_interrupted_before_it_loads_anything() -> None:
    """Ctrl-C during an import of a module outside `main` would be a traceback."""
    assert loaded_by("import triptych.cli") & {"asyncio", "grpc", "google.protobuf", "rich", "typer"} == set()


def test_the_router_loads_neither_torch_nor_model_classes() -> None:
    loaded = loaded_by(
        "from services.router.torch_free import block_torch; block_torch(); import services.router.service"
    )
    assert loaded & {"torch", "ray"} == set()
    assert [name for name in loaded if name.startswith("transformers.models.") and ".modeling_" in name] == []


def test_the_protobuf_packages_name_is_not_shadowed() -> None:
    assert loaded_by("import proto; assert hasattr(proto, 'Message')")


def test_ray_is_imported_without_a_grammar_that_takes_longer_than_itself() -> None:
    """`jsonschema`, which Ray needs, compiles one where `rfc3987-syntax` is installed: in each of Ray's processes."""
    assert find_spec("rfc3987_syntax") is None
