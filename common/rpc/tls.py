"""The certificates of a process: what its servers show, whom they let in, and what its calls to others use."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from triptych.errors import ConfigError
from triptych.tls import Tls, read_pem


@dataclass(frozen=True)
class ServerTls:
    """PEM files of a server. With `client_ca`, callers must show a certificate that one of these CAs signed."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """For gRPC; ConfigError when the files do not belong together or cannot be read."""
        check_identity(self.cert, self.key)
        roots = read_pem(self.client_ca) if self.client_ca else None
        return grpc.ssl_server_credentials(
            [(read_pem(self.key), read_pem(self.cert))], root_certificates=roots, require_client_auth=roots is not None
        )


def check_identity(cert: Path, key: Path) -> None:
    """ConfigError unless `key` is that of the certificate: gRPC itself would only fail at every handshake."""
    for path in (cert, key):
        read_pem(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except ssl.SSLError as error:
        raise ConfigError(f"{cert} and {key} are no certificate with its key ({error.reason})") from error


def server_tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    """None without a certificate: plain text. ConfigError for half an identity."""
    if cert is None and key is None:
        if client_ca is not None:
            raise ConfigError("callers can show certificates only to a server that has one itself: set tls-cert")
        return None
    if cert is None or key is None:
        raise ConfigError("tls-cert and tls-key are set together or not at all")
    return ServerTls(cert, key, client_ca)


def client_tls(ca: Path | None, cert: Path | None, key: Path | None) -> Tls | None:
    """None without `ca`: plain text. With it, calls show the process's own certificate, too."""
    if ca is None:
        return None
    read_pem(ca)
    return Tls(ca, cert, key)
