"""The secrets that a deployment is given: files of the host, made for one test."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from triptych.keys import key_digest, new_key


@dataclass(frozen=True)
class SecretFiles:
    """The password of Redis, and the API key of a tenant who may watch the cluster."""

    folder: Path
    password: str
    key: str

    @classmethod
    def write(cls, folder: Path) -> SecretFiles:
        """New ones, in a folder of their own."""
        folder.mkdir()
        made = cls(folder, secrets.token_hex(16), new_key())
        made._password_file.write_text(made.password)
        keys = f'[[keys]]\ntenant = "drill"\nsha256 = "{key_digest(made.key)}"\n\n[tenants.drill]\noperator = true\n'
        made._keys_file.write_text(keys)
        return made

    @property
    def environment(self) -> dict[str, str]:
        """What .env says of them."""
        files = {"TRIPTYCH_REDIS_PASSWORD_FILE": self._password_file, "TRIPTYCH_API_KEYS_FILE": self._keys_file}
        return {name: str(file) for name, file in files.items()} | {"TRIPTYCH_KEYS": "/run/secrets/api_keys"}

    @property
    def _password_file(self) -> Path:
        return self.folder / "redis_password"

    @property
    def _keys_file(self) -> Path:
        return self.folder / "keys.toml"
