"""Describe transactions so that a silent coordinator is never mistaken for the end of a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.sinks.kafka.reports import NONE, NOT_FOUND, described

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from twopc.sinks.kafka.reports import Description
    from twopc.sinks.kafka.transactions import TransactionClient

#: How long a coordinator may take to move to another broker, or to load its transactions after a restart.
_ANSWER_S: Final = 5.0


def describe(client: TransactionClient, transactional_ids: Iterable[str]) -> dict[str, Description]:
    """Describe transactions. Ask again, for a few seconds, about those whose coordinator does not respond."""
    return described(client.describe, transactional_ids, timeout_ms=_ANSWER_S * 1000)


def is_known(description: Description) -> bool:
    """Whether the coordinator reported the transaction's state. Otherwise, the transaction may be open."""
    return description.error in {NONE, NOT_FOUND}


def undescribed(found: Mapping[str, Description]) -> list[str]:
    """List the transactions that may be open even though no coordinator described them."""
    return sorted(tid for tid, description in found.items() if not is_known(description))
