"""A secured cluster: both clients, the one that writes and the one that commits, take the same options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from integration.services.kafka import LocalKafka
from tests.live.pipeline import Query, Tasks
from twopc.errors import ConfigurationError, TwoPhaseCommitError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER, PASSWORD = "ann", "a pass, word=1"
ROWS = [["a", "b"], ["c"], []]


@pytest.fixture(scope="module")
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
    return directory / "ca.pem", directory / "broker.pem"


@pytest.fixture(scope="module")
def secured(authority: tuple[Path, Path]) -> Iterator[LocalKafka]:
    """A broker with a SASL_SSL listener (SCRAM) and ACLs; the plain listener's anonymous user may do everything."""
    properties = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.secure.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority[1]),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with LocalKafka(listeners={"SECURE": "SASL_SSL"}, properties=properties) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        credential = UserScramCredentialUpsertion(
            USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), PASSWORD.encode()
        )
        admin.alter_user_scram_credentials([credential])[USER].result()
        yield kafka


def options(authority: tuple[Path, Path], **other: Any) -> dict[str, Any]:
    return {
        "kafka.security.protocol": "sasl_ssl",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.username": USER,
        "kafka.sasl.password": PASSWORD,
        "kafka.ssl.ca.location": str(authority[0]),
        **other,
    }


def secure_query(kafka: LocalKafka, root: Path, authority: tuple[Path, Path], **other: Any) -> Query:
    """A query whose output exists, and whose sink comes in by the secured listener."""
    query = Query(kafka.bootstrap_servers, root)
    query.sink = type(query.sink)(
        name=query.name,
        bootstrap_servers=kafka.address("SECURE"),
        topic=query.topic,
        options=options(authority, **other),
        timeout_ms=8_000,
    )
    return query


def allow(kafka: LocalKafka, *rights: tuple[ResourceType, str, ResourcePatternType, AclOperation]) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    bindings = [
        AclBinding(kind, name, pattern, f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
        for kind, name, pattern, operation in rights
    ]
    for future in admin.create_acls(bindings).values():
        future.result()


def documented_rights(query: Query) -> list[tuple[ResourceType, str, ResourcePatternType, AclOperation]]:
    """The README's list, right by right."""
    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    ledger = ("CREATE", "READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "DELETE")
    return [
        *((ResourceType.TOPIC, query.sink.ledger, literal, AclOperation[right]) for right in ledger),
        *((ResourceType.TOPIC, query.topic, literal, AclOperation[right]) for right in ("WRITE", "DESCRIBE")),
        *(
            (ResourceType.TOPIC, "__transaction_state", literal, AclOperation[right])
            for right in ("DESCRIBE", "DESCRIBE_CONFIGS")
        ),
        *(
            (ResourceType.TRANSACTIONAL_ID, f"{query.name}.", prefixed, AclOperation[right])
            for right in ("WRITE", "DESCRIBE")
        ),
    ]


def test_the_documented_rights_suffice_over_scram_and_tls(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    query = secure_query(secured, tmp_path, authority)
    allow(secured, *documented_rights(query))
    query.driver().process(query.batch(0), Tasks(query, ROWS))
    restarted = query.driver()
    restarted.process(query.batch(0), Tasks(query, ROWS))
    restarted.process(query.batch(1), Tasks(query, [["d"]]))
    assert query.visible() == {"a": 1, "b": 1, "c": 1, "d": 1}


@pytest.mark.parametrize("right", ["WRITE", "DESCRIBE"])
def test_a_denied_transactional_id_stops_the_query_by_name_and_after_the_remedy_nothing_is_lost(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path], right: str
) -> None:
    query = secure_query(secured, tmp_path, authority)
    rights = documented_rights(query)
    # Write on an id implies Describe: without Describe means without both.
    withheld = [r for r in rights if r[0] is ResourceType.TRANSACTIONAL_ID and right in {"DESCRIBE", r[3].name}]
    allow(secured, *(r for r in rights if r not in withheld))
    with pytest.raises(
        ConfigurationError, match=rf"(?s)Describe.*{query.name}\.|Write and Describe on the transactional"
    ):
        query.driver().process(query.batch(0), Tasks(query, ROWS))
    assert query.visible() == {}
    allow(secured, *withheld)
    query.driver().process(query.batch(0), Tasks(query, ROWS))
    assert query.visible() == {"a": 1, "b": 1, "c": 1}


def test_a_denied_output_topic_is_named_and_nothing_becomes_visible(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    query = secure_query(secured, tmp_path, authority)
    allow(secured, *(r for r in documented_rights(query) if r[1] != query.topic))
    with pytest.raises(ConfigurationError, match=rf"(?s){query.topic}|Write and Describe on it"):
        query.driver().process(query.batch(0), Tasks(query, ROWS))
    assert query.visible() == {}


@pytest.mark.parametrize(
    "wrong",
    [{"kafka.sasl.password": "wrong"}, {"kafka.security.protocol": "SASL_PLAINTEXT"}],
    ids=["password", "no TLS"],
)
def test_wrong_credentials_name_the_settings_to_check(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path], wrong: dict[str, str]
) -> None:
    query = secure_query(secured, tmp_path, authority, **wrong)
    with pytest.raises(TwoPhaseCommitError, match=r"kafka\.(sasl|security)"):
        query.driver().process(query.batch(0), Tasks(query, ROWS))


def test_a_certificate_of_another_authority_is_refused(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    query = secure_query(secured, tmp_path, authority, **{"kafka.ssl.ca.location": str(other)})
    with pytest.raises(TwoPhaseCommitError, match=r"kafka\.(ssl|security)"):
        query.driver().process(query.batch(0), Tasks(query, ROWS))


def test_a_password_is_in_no_representation_of_the_sink(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    query = secure_query(secured, tmp_path, authority)
    assert PASSWORD not in repr(query.sink)
