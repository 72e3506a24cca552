"""A broker with TLS, SASL and ACLs, shared by all tests that need one. Each test has its own users and names."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.live.broker_changes import add_scram_user
from tests.live.security_support import (
    CANARY_PASSWORD,
    CANARY_USER,
    KEY_PASSWORD,
    PASSWORD,
    USER,
)
from tests.live.services import KafkaService
from twopc.integration.services.kafka import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOGIN = "org.apache.kafka.common.security"


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate authority and a broker's key, as PEM files: (authority, broker)."""
    directory = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(directory / "ca.pem")
    issued = ca.issue_cert("127.0.0.1")
    # Kafka reads PKCS #8 only.
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
    (directory / "broker.pem").write_bytes(pkcs8 + chain)
    (directory / "client.pem").write_bytes(chain)
    (directory / "client.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(KEY_PASSWORD.encode()))
    )
    return directory / "ca.pem", directory / "broker.pem"


@pytest.fixture(scope="session")
def secured(authority: tuple[Path, Path]) -> Iterator[LocalKafka]:
    """A broker with a SASL_SSL listener and ACLs. On the plain listener, everybody may do everything."""
    properties = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN,OAUTHBEARER",
        "listener.name.secure.scram-sha-256.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
        "listener.name.secure.plain.sasl.jaas.config": (
            f'{_LOGIN}.plain.PlainLoginModule required user_{CANARY_USER}="{CANARY_PASSWORD}";'
        ),
        "listener.name.secure.oauthbearer.sasl.jaas.config": (
            f'{_LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority[1]),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority[0]),
        "ssl.client.auth": "requested",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with LocalKafka(listeners={"SECURE": "SASL_SSL"}, properties=properties) as kafka:
        add_scram_user(kafka.bootstrap_servers, USER, PASSWORD)
        add_scram_user(kafka.bootstrap_servers, CANARY_USER, CANARY_PASSWORD)
        yield kafka
        # A client may outlive its broker if it is still being created, or if the traceback of a refusal refers to it.
        # Such a client logs errors.
        for thread in threading.enumerate():
            if thread.name == "twopc-producers":
                thread.join()
        gc.collect()


@pytest.fixture
def secure_options(authority: tuple[Path, Path]) -> dict[str, Any]:
    """A sink's options for that listener, without user and password."""
    return {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.ssl.ca.location": str(authority[0]),
    }


@pytest.fixture(scope="module")
def forgetful() -> Iterator[KafkaService]:
    """A broker that forgets a transactional id five seconds after its last use: a batch takes less, on a busy machine, too."""
    properties = {
        "transactional.id.expiration.ms": "5000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    }
    with LocalKafka(properties=properties) as kafka:
        yield KafkaService(kafka.bootstrap_servers, kafka)
