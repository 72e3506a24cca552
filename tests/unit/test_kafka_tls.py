"""The driver's clients accept the certificates that librdkafka accepts, although Python 3.13 is stricter by default."""

from __future__ import annotations

import ssl
import urllib.request
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from twopc.sinks.kafka.oauth_requests import ClientCredentials
from twopc.sinks.kafka.options import for_kafka_python

if TYPE_CHECKING:
    from pathlib import Path

HOST = "broker.example"
_CREATE = ssl.create_default_context


def _signed(name: str, key: Any, issuer: str, issuer_key: Any, *, is_authority: bool) -> x509.Certificate:
    """A certificate without an Authority Key Identifier."""
    now = datetime.now(tz=timezone.utc)
    by, of = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (issuer, name))
    return (
        x509.CertificateBuilder(by, of, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """The file of an authority. A broker's certificate and key are in a file next to it."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = _signed("authority", ca_key, "authority", ca_key, is_authority=True)
    own = _signed(HOST, key, "authority", ca_key, is_authority=False)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "broker.pem").write_bytes(private + own.public_bytes(pem))
    (tmp_path / "ca.pem").write_bytes(ca.public_bytes(pem))
    return tmp_path / "ca.pem"


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Python 3.13."""

    def create(**given: Any) -> ssl.SSLContext:
        context = _CREATE(**given)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", create)


def handshake(context: ssl.SSLContext, authority: Path) -> None:
    """Let a client with this context shake hands with the broker."""
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(authority.with_name("broker.pem"))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(back, there, server_hostname=HOST)
    server = served.wrap_bio(there, back, server_side=True)
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_the_committing_client_accepts_an_authority_without_a_key_identifier(authority: Path) -> None:
    """Seen: the tasks wrote, and the driver refused the brokers' certificates."""
    with pytest.raises(ssl.SSLCertVerificationError, match="Authority Key Identifier"):
        handshake(ssl.create_default_context(cafile=str(authority)), authority)
    config = for_kafka_python({"security.protocol": "ssl", "ssl.ca.location": str(authority)})
    handshake(config["ssl_context"], authority)
    assert config["ssl_context"].verify_mode is ssl.CERT_REQUIRED


def test_the_client_of_the_token_endpoint_accepts_it_too(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[ssl.SSLContext] = []

    def stop(context: ssl.SSLContext) -> None:
        used.append(context)
        raise InterruptedError

    monkeypatch.setattr(urllib.request, "HTTPSHandler", stop)
    names = ("token.endpoint.url", "client.id", "client.secret")
    options = {f"sasl.oauthbearer.{name}": "https://login.example/token" for name in names}
    with pytest.raises(InterruptedError):
        ClientCredentials({**options, "https.ca.location": str(authority)})(None)
    handshake(used[0], authority)
