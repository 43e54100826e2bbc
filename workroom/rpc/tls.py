"""Owns how certificate files become gRPC credentials."""

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True)
class ServerTls:
    """A server's certificate chain and key (PEM files).

    With `client_ca`, only clients with a certificate that it signed are served: mutual TLS.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @property
    def mutual(self) -> bool:
        """Whether clients must show a certificate."""
        return self.client_ca is not None

    def credentials(self) -> grpc.ServerCredentials:
        """Reads the files. Raises OSError where one cannot be read."""
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        if self.client_ca is None:
            return grpc.ssl_server_credentials([pair])
        return grpc.ssl_server_credentials(
            [pair], root_certificates=self.client_ca.read_bytes(), require_client_auth=True
        )


@dataclass(frozen=True)
class ClientTls:
    """What a client trusts (`ca`; the system's roots if None) and, for mutual TLS, shows.

    `server_name` is the name to verify where the address is not the certificate's.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("client TLS: certificate and key go together")

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files. Raises OSError where one cannot be read."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca),
            private_key=_read(self.key),
            certificate_chain=_read(self.certificate),
        )


def _read(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()
