"""The certificates of a connection: whom a caller trusts, and who the caller is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from triptych.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of a caller. Without `ca` the public roots are trusted; `cert` and `key` are for mutual TLS."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """For gRPC; ConfigError when a file cannot be read or only one of `cert` and `key` is given."""
        if (self.cert is None) != (self.key is None):
            raise ConfigError("a certificate and its key are given together or not at all")
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))


def chosen_tls(use: bool, ca: Path | None, cert: Path | None, key: Path | None) -> Tls | None:
    """From the options of a command: None, which is plain text, without any of them."""
    return Tls(ca, cert, key) if use or ca or cert or key else None


def read_pem(path: Path) -> bytes:
    """The file; ConfigError when it cannot be read or holds no PEM."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if b"-----BEGIN " not in content:
        raise ConfigError(f"{path} holds nothing in PEM form")
    return content


def _read(path: Path | None) -> bytes | None:
    return None if path is None else read_pem(path)
