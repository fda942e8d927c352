"""Where services listen, and what they tell others of it."""

from __future__ import annotations

from typing import Any

import pytest

from common.rpc.address import host_port, is_every_interface, listen
from common.settings import RegisteredSettings
from services.prefill.settings import PrefillSettings
from services.router.settings import RouterSettings
from triptych.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({}, "127.0.0.1:7"),
        ({"host": "::1"}, "[::1]:7"),
        ({"host": "[fd00::2]"}, "[fd00::2]:7"),
        ({"host": "0.0.0.0", "advertise": "[fd00::3]"}, "[fd00::3]:7"),
        ({"host": "::", "advertise": "worker.internal"}, "worker.internal:7"),
    ],
)
def test_a_worker_registers_an_address_that_others_can_use(fields: dict[str, Any], address: str) -> None:
    assert RegisteredSettings(model="m", **fields).address(7) == address


@pytest.mark.parametrize("flags", [("--host", "0.0.0.0"), ("--host", "[::]"), ("--advertise", "0.0.0.0")])
def test_every_interface_is_no_address_to_register(flags: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"host .* set advertise"):
        PrefillSettings.load(["--model", "m", *flags])


def test_a_router_registers_nothing_and_may_listen_everywhere() -> None:
    assert RouterSettings(model="m", host="0.0.0.0").host == "0.0.0.0"


def test_names_and_addresses_are_told_from_every_interface() -> None:
    hosts = ["0.0.0.0", "::", "0:0::0", "", "127.0.0.1", "localhost", "::1"]
    assert [is_every_interface(host) for host in hosts] == [True] * 4 + [False] * 3


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::"])
def test_any_kind_of_address_is_listened_on(host: str) -> None:
    with listen(host, 0) as listener:
        assert host_port(*listener.getsockname()[:2]).rpartition(":")[0].strip("[]") == host
