import datetime
import ipaddress
import itertools
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.workroom.rpc.echo import SERVICE, Caller, Echo, text
from workroom.errors import RemoteError, Unauthenticated
from workroom.rpc.auth import current_principal, token_verifier
from workroom.rpc.channel import open_channel, translate_errors
from workroom.rpc.listeners import InsecureListener
from workroom.rpc.server import Listener, serving
from workroom.rpc.tls import ClientTls, ServerTls


class Authority:
    """Signs certificates into PEM files of its folder."""

    def __init__(self, folder):
        folder.mkdir()
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.name)])
        certificate = self._sign(self._name, self._key.public_key(), is_ca=True)
        self.file = self._write("ca.pem", certificate.public_bytes(serialization.Encoding.PEM))
        self._numbers = itertools.count()

    def issue(self, host="127.0.0.1") -> tuple[Path, Path]:
        """A certificate file and a key file."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        certificate = self._sign(subject, key.public_key(), host=host)
        number = next(self._numbers)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return (
            self._write(f"{number}.pem", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{number}.key", private),
        )

    def _sign(self, subject, public_key, *, is_ca=False, host=None):
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if host is not None:
            name: x509.GeneralName
            try:
                name = x509.IPAddress(ipaddress.ip_address(host))
            except ValueError:
                name = x509.DNSName(host)
            builder = builder.add_extension(x509.SubjectAlternativeName([name]), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _write(self, name, content):
        file = self._folder / name
        file.write_bytes(content)
        return file


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "authority")


async def who(request, context):
    return text(current_principal().name)


def serve(listener):
    return serving([Echo(unary_unary=who).register], listener, services=[SERVICE])


async def call(address, **kwargs):
    async with open_channel(address, **kwargs) as channel:
        with translate_errors():
            return (await Caller(channel).unary_unary(text(""), timeout=5)).value


async def test_token_over_tls(authority):
    tls = ServerTls(*authority.issue())
    async with serve(Listener("127.0.0.1:0", token_verifier("t"), tls)) as server:
        trusting = ClientTls(ca=authority.file)
        assert await call(server.address, key="t", tls=trusting) == "owner"
        with pytest.raises(Unauthenticated):
            await call(server.address, key="other", tls=trusting)


async def test_mutual_tls_needs_no_token(authority):
    served, served_key = authority.issue()
    tls = ServerTls(served, served_key, client_ca=authority.file)
    certificate, key = authority.issue("client")
    async with serve(Listener("127.0.0.1:0", tls=tls)) as server:
        client = ClientTls(ca=authority.file, certificate=certificate, key=key)
        assert await call(server.address, tls=client) == "owner"


async def test_mutual_tls_refuses_strangers(authority, tmp_path):
    served, served_key = authority.issue()
    tls = ServerTls(served, served_key, client_ca=authority.file)
    certificate, key = Authority(tmp_path / "other").issue("client")
    async with serve(Listener("127.0.0.1:0", tls=tls)) as server:
        for client in (
            None,
            ClientTls(ca=authority.file),
            ClientTls(ca=authority.file, certificate=certificate, key=key),
        ):
            with pytest.raises(RemoteError) as caught:
                await call(server.address, tls=client)
            assert caught.value.code is grpc.StatusCode.UNAVAILABLE


async def test_client_refuses_a_server_that_it_does_not_trust(authority, tmp_path):
    tls = ServerTls(*Authority(tmp_path / "other").issue())
    async with serve(Listener("127.0.0.1:0", token_verifier("t"), tls)) as server:
        with pytest.raises(RemoteError) as caught:
            await call(server.address, key="t", tls=ClientTls(ca=authority.file))
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE


async def test_name_to_verify_can_be_another_than_the_address(authority):
    tls = ServerTls(*authority.issue("runtime.internal"))
    async with serve(Listener("127.0.0.1:0", token_verifier("t"), tls)) as server:
        with pytest.raises(RemoteError):
            await call(server.address, key="t", tls=ClientTls(ca=authority.file))
        named = ClientTls(ca=authority.file, server_name="runtime.internal")
        assert await call(server.address, key="t", tls=named) == "owner"


async def test_tls_without_client_certificates_is_not_enough(authority):
    with pytest.raises(InsecureListener):
        async with serve(Listener("127.0.0.1:0", tls=ServerTls(*authority.issue()))):
            pass


async def test_missing_certificate_file_says_which(authority, tmp_path):
    tls = ServerTls(tmp_path / "none.pem", tmp_path / "none.key")
    with pytest.raises(FileNotFoundError, match=r"none\.key"):
        async with serve(Listener("127.0.0.1:0", token_verifier("t"), tls)):
            pass
