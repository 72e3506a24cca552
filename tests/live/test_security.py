"""A secured cluster: the client that writes and the client that commits accept the same options."""

from __future__ import annotations

import contextlib
import logging
import re
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.live.broker_changes import with_acl
from tests.live.pipeline import Query, Tasks, create_topic
from tests.live.rules.schedules import at
from tests.live.security_support import PASSWORD, USER, allow, documented_rights
from twopc.errors import CommitBlockedError, ConfigurationError, TwoPhaseCommitError
from twopc.sinks.kafka import ledger_topic
from twopc.sinks.kafka.reports import NO_ANSWER
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from twopc.integration.services.kafka import LocalKafka

ROWS = [["a", "b"], ["c"], []]


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
    """A query with an existing output, whose sink uses the secured listener."""
    query = Query(kafka.bootstrap_servers, root)
    query.sink = type(query.sink)(
        name=query.name,
        bootstrap_servers=kafka.address("SECURE"),
        topic=query.topic,
        options=options(authority, **other),
        timeout_ms=8_000,
    )
    return query


def test_the_documented_rights_suffice_over_scram_and_tls(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    query = secure_query(secured, tmp_path, authority)
    allow(secured, documented_rights(query.sink, query.topic))
    query.driver().process(query.batch(0), Tasks(query, ROWS))
    restarted = query.driver()
    restarted.process(query.batch(0), Tasks(query, ROWS))
    restarted.process(query.batch(1), Tasks(query, [["d"]]))
    assert query.visible() == {"a": 1, "b": 1, "c": 1, "d": 1}


@pytest.mark.parametrize("right", ["WRITE", "DESCRIBE"])
def test_a_denied_transactional_id_is_reported_and_nothing_is_lost_once_it_is_allowed(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path], right: str
) -> None:
    query = secure_query(secured, tmp_path, authority)
    rights = documented_rights(query.sink, query.topic)
    # Write on an id implies Describe, so a user without Describe must have neither.
    withheld = [r for r in rights if r[0] is ResourceType.TRANSACTIONAL_ID and right in {"DESCRIBE", r[3].name}]
    allow(secured, (r for r in rights if r not in withheld))
    with pytest.raises(ConfigurationError, match=rf"(?s){right.title()}.*{query.name}\."):
        query.driver().process(query.batch(0), Tasks(query, ROWS))
    assert query.visible() == {}
    allow(secured, withheld)
    query.driver().process(query.batch(0), Tasks(query, ROWS))
    assert query.visible() == {"a": 1, "b": 1, "c": 1}


def test_a_denied_output_topic_is_reported_and_nothing_becomes_visible(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    query = secure_query(secured, tmp_path, authority)
    allow(secured, (r for r in documented_rights(query.sink, query.topic) if r[1] != query.topic))
    with pytest.raises(ConfigurationError, match=rf"Allow \w+ on the topic {query.topic}"):
        query.driver().process(query.batch(0), Tasks(query, ROWS))
    assert query.visible() == {}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"kafka.sasl.password": "wrong"}, id="password"),
        pytest.param({"kafka.security.protocol": "SASL_PLAINTEXT"}, id="no TLS", marks=pytest.mark.whole),
    ],
)
def test_the_error_for_wrong_credentials_mentions_the_settings_to_check(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path], wrong: dict[str, str]
) -> None:
    query = secure_query(secured, tmp_path, authority, **wrong)
    with pytest.raises(TwoPhaseCommitError, match=r"kafka\.(sasl|security)"):
        query.driver().process(query.batch(0), Tasks(query, ROWS))


def test_the_certificate_of_an_unknown_authority_is_refused(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    query = secure_query(secured, tmp_path, authority, **{"kafka.ssl.ca.location": str(other)})
    with pytest.raises(TwoPhaseCommitError, match=r"kafka\.(ssl|security)"):
        query.driver().process(query.batch(0), Tasks(query, ROWS))


@pytest.mark.parametrize("expired", ["password", "certificate"])
def test_the_committing_client_says_why_a_broker_refuses_its_new_connections(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path], expired: str
) -> None:
    """Seen: after a rotation of passwords or certificates, the error said only that no response came."""
    query = secure_query(secured, tmp_path, authority)
    with contextlib.closing(TransactionClient(query.sink.committing_config())) as client:
        manager = client._connection._manager
        if expired == "password":
            manager.config |= {"sasl_plain_password": "old"}
        else:
            manager.config["ssl_context"] = ssl.create_default_context()  # does not know the authority
        manager.run(partial(close_all, manager))
        assert client.describe([f"{query.name}.1.w.0"])[f"{query.name}.1.w.0"].error == NO_ANSWER
        [why] = client.connection_errors()
    assert why.startswith("the last connection")
    said = r"SaslAuthenticationFailed|check kafka\.sasl" if expired == "password" else "CERTIFICATE_VERIFY_FAILED"
    assert re.search(said, why)


async def close_all(manager: Any) -> None:
    for connection in list(manager._conns.values()):
        connection.close()


def test_the_sinks_representation_hides_the_password(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    query = secure_query(secured, tmp_path, authority)
    assert PASSWORD not in repr(query.sink)


def denied(
    kafka: LocalKafka, kind: ResourceType, name: str, pattern: ResourcePatternType, operation: AclOperation
) -> AbstractContextManager[None]:
    """A right is revoked, and granted again."""
    binding = AclBinding(kind, name, pattern, f"User:{USER}", "*", operation, AclPermissionType.DENY)
    return with_acl(kafka.bootstrap_servers, binding)


def test_a_right_lost_before_the_commit_is_reported_with_the_remaining_time_and_nothing_is_lost(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    """Caught mutation: ``KafkaCommitter`` reports no blockers ("restart when every broker answers")."""
    query = secure_query(secured, tmp_path, authority)
    allow(secured, documented_rights(query.sink, query.topic))
    prefix = (ResourceType.TRANSACTIONAL_ID, f"{query.name}.", ResourcePatternType.PREFIXED, AclOperation.WRITE)
    reason = r"broker 1: not authorized. Allow Write.*expire after kafka\.transaction\.timeout\.ms=900000"
    with contextlib.ExitStack() as withdrawn:
        lose = partial(withdrawn.enter_context, denied(secured, *prefix))
        with pytest.raises(CommitBlockedError, match=reason), at("driver.decided", lose):
            query.driver().process(query.batch(0), Tasks(query, ROWS))
    replay = Tasks(query, ROWS)
    query.driver().process(query.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert query.visible() == {"a": 1, "b": 1, "c": 1}


def test_a_start_only_warns_if_it_may_neither_delete_records_nor_see_the_transaction_log(
    secured: LocalKafka, tmp_path: Path, authority: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Caught mutations: a topic that cannot be described is refused; the right to delete is first tried after 200 batches."""
    query = secure_query(secured, tmp_path, authority)
    create_topic(secured.bootstrap_servers, query.sink.ledger, 9, dict(ledger_topic._REQUIRED))
    allow(secured, (right for right in documented_rights(query.sink, query.topic) if right[3] != AclOperation.DELETE))
    hidden = (ResourceType.TOPIC, "__transaction_state", ResourcePatternType.LITERAL, AclOperation.ALL)
    with denied(secured, *hidden), caplog.at_level(logging.WARNING, "twopc.sinks.kafka"):
        query.driver().process(query.batch(0), Tasks(query, ROWS))
        assert any("settings of __transaction_state could not be checked" in text for text in caplog.messages)
        grows = [text for text in caplog.messages if "the ledger grows until the deletion succeeds" in text]
        assert len(grows) == 1
        assert f"Allow Delete on the topic {query.sink.ledger}" in grows[0]
        query.driver().process(query.batch(1), Tasks(query, [["d"]]))
    assert query.visible() == {"a": 1, "b": 1, "c": 1, "d": 1}
