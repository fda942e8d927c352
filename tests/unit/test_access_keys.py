"""The keys file and what is read from it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.router.access.access import Access
from services.router.access.allowance import Quotas
from services.router.access.keys_file import KeysFile
from services.router.access.tenants import parse_tenants
from triptych.cli.app import app
from triptych.errors import ConfigError, InvalidArgumentError, UnauthenticatedError
from triptych.keys import key_digest

# Not drawn: processes that share the tests must find the same ones.
ONE, TWO = "tk-oNe" + "1" * 40, "tk-tWo" + "2" * 40


def entry(key: str, tenant: str) -> str:
    return f'[[keys]]\ntenant = "{tenant}"\nsha256 = "{key_digest(key)}"\n'


def access(text: str, share: bool = False) -> Access:
    tenants = parse_tenants(text)
    return Access(lambda: tenants, Quotas(lambda: 0.0), share)


def replace(path: Path, text: str) -> None:
    """As editors and Kubernetes do: another file takes the name."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, path)


async def test_a_key_names_its_tenant() -> None:
    door = access(entry(ONE, "acme") + entry(TWO, "zoo"))
    tenants = [door.caller(header, 1.0).tenant for header in (f"Bearer {ONE}", f"bearer  {TWO} ")]
    assert tenants == ["acme", "zoo"]


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", f"Basic {ONE}", ONE, f"Bearer {ONE}x", f"Bearer {ONE.upper()}", "Bearer ü"],
)
async def test_everything_else_is_refused_without_repeating_it(header: str | None) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        access(entry(ONE, "acme")).caller(header, 1.0)
    assert ONE[:8] not in caught.value.message


async def test_without_a_keys_file_everybody_is_one_tenant() -> None:
    door = Access(lambda: None, Quotas(lambda: 0.0))
    assert door.caller(None, 1.0).tenant == door.caller("Bearer whatever", 1.0).tenant == ""


async def test_a_salt_does_not_lead_into_another_tenants_scope() -> None:
    door = access(entry(ONE, "acme") + entry(TWO, "zoo"))
    acme, zoo = door.caller(f"Bearer {ONE}", 1.0), door.caller(f"Bearer {TWO}", 1.0)
    scopes = [caller.scope(salt) for caller in (acme, zoo) for salt in (None, "s", "acme", "zoo")]
    assert len(set(scopes)) == 8
    with pytest.raises(InvalidArgumentError):
        acme.scope("")


async def test_sharing_needs_the_server_and_may_be_declined_by_a_tenant() -> None:
    text = entry(ONE, "acme") + entry(TWO, "zoo")
    for extra, share, equal in (("", True, True), ("", False, False), ("[tenants.zoo]\nshare = false\n", True, False)):
        door = access(text + extra, share)
        scopes = [door.caller(f"Bearer {key}", 1.0).scope("s") for key in (ONE, TWO)]
        assert (scopes[0] == scopes[1]) == equal


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "keys"),
        ("keys = [", "TOML"),
        ('[[keys]]\ntenant = "acme"\n', "keys.0.sha256"),
        (f'[[keys]]\ntenant = "acme"\nsha256 = "{ONE}"\n', "keys.0.sha256"),
        (entry(ONE, ""), "keys.0.tenant"),
        (entry(ONE, "a b"), "keys.0.tenant"),
        (entry(ONE, "acme") + "[tenants.acme]\nrequests = 0\n", "tenants.acme.requests"),
        (entry(ONE, "acme") + '[tenants.acme]\nrequests = "5"\n', "tenants.acme.requests"),
        (entry(ONE, "acme") + "[tenants.acme]\nwishes = 3\n", "tenants.acme.wishes"),
        (entry(ONE, "acme") + "[tenants.amce]\nrequests = 3\n", "'amce', which has no key"),
    ],
)
def test_a_bad_keys_file_is_one_sentence_without_its_secrets(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_tenants(text)
    assert place in caught.value.message and ONE not in caught.value.message


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(entry(ONE, "acme"))
    keys = KeysFile(path)
    assert not keys.refresh()
    replace(path, entry(TWO, "acme"))
    assert keys.refresh()
    assert (keys.tenants.find(ONE), (keys.tenants.find(TWO) or ("",))[0]) == (None, "acme")


def test_a_bad_new_file_keeps_the_old_keys_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(entry(ONE, "acme"))
    keys = KeysFile(path)
    replace(path, f'sha256 = "{TWO}"')
    with caplog.at_level(logging.WARNING):
        assert not keys.refresh() and not keys.refresh()
    path.unlink()
    assert not keys.refresh()
    assert keys.tenants.find(ONE)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 2
    assert TWO not in caplog.text


def test_a_file_that_becomes_readable_is_read_although_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(entry(ONE, "acme"))
    keys = KeysFile(path)
    replace(path, entry(TWO, "acme"))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", _refuse)
        assert not keys.refresh()
    assert keys.refresh()
    assert keys.tenants.find(TWO)


def _refuse(*_: object, **__: object) -> str:
    raise PermissionError


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000], ids=["huge", "deep"])
def test_what_is_too_much_to_read_is_a_bad_file(value: str) -> None:
    with pytest.raises(ConfigError, match="no TOML"):
        parse_tenants(f"x = {value}")


def test_a_missing_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        KeysFile(tmp_path / "nothing.toml")


def test_the_command_makes_keys_that_the_file_accepts() -> None:
    made = CliRunner().invoke(app, ["keys", "new", "acme"])
    key = made.stderr.split()[-1]
    found = parse_tenants(made.stdout).find(key)
    assert found is not None and found[0] == "acme"
    assert key not in made.stdout
