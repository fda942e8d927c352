"""Certificates made for one test: an authority, identities it signed, and strangers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme

from common.rpc.tls import ServerTls
from triptych.tls import Tls

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Identity:
    """Files of one certificate, and of the authority that signed it."""

    ca: Path
    cert: Path
    key: Path

    @property
    def server(self) -> ServerTls:
        """Shown by a server that asks its callers for certificates of the same authority."""
        return ServerTls(self.cert, self.key, self.ca)

    @property
    def client(self) -> Tls:
        """Shown by a caller."""
        return Tls(self.ca, self.cert, self.key)

    @property
    def settings(self) -> dict[str, Path]:
        """Mutual TLS on every hop, as a service's settings say it."""
        return {"tls_cert": self.cert, "tls_key": self.key, "tls_client_ca": self.ca, "tls_ca": self.ca}


def issue(directory: Path, name: str = HOST) -> Identity:
    """An identity for `name`, of an authority of its own."""
    directory.mkdir()
    authority = trustme.CA()
    leaf = authority.issue_cert(name)
    identity = Identity(directory / "ca.pem", directory / "cert.pem", directory / "key.pem")
    authority.cert_pem.write_to_path(identity.ca)
    leaf.private_key_pem.write_to_path(identity.key)
    for blob in leaf.cert_chain_pems:
        blob.write_to_path(identity.cert, append=True)
    return identity
