"""Check that no transaction is still open at the end. An open transaction holds back every reader until it times out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafka.admin import KafkaAdminClient

from twopc.testing.checkers.history import Violation

if TYPE_CHECKING:
    from collections.abc import Mapping

_AT_REST: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


def left_open(states: Mapping[str, str]) -> list[Violation]:
    """Find the transactional ids that are not at rest, according to the state that Kafka reports."""
    return [
        Violation("open transactions", f"{transactional_id} is {state}", (transactional_id, state))
        for transactional_id, state in sorted(states.items())
        if state not in _AT_REST
    ]


def states_of(bootstrap_servers: str, prefix: str) -> dict[str, str]:
    """Return the state of every transactional id that begins with ``prefix``, from all brokers (KIP-664)."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers.split(","))
    try:
        listed = admin.list_transactions()
    finally:
        admin.close()
    return {
        row.transactional_id: str(getattr(row.state, "value", row.state))
        for of_broker in listed.values()
        for row in of_broker
        if row.transactional_id.startswith(prefix)
    }
