"""Describe transactions so that a silent coordinator is never mistaken for the end of a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.sinks.kafka.reports import NONE, NOT_FOUND, until_final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from twopc.sinks.kafka.reports import Description
    from twopc.sinks.kafka.transactions import TransactionClient

#: How long a coordinator may take to move to another broker, or to load its transactions after a restart.
_ANSWER_S: Final = 5.0


def describe(client: TransactionClient, transactional_ids: Iterable[str]) -> dict[str, Description]:
    """Describe transactions. Ask again, for a few seconds, about those whose coordinator does not respond."""
    found: dict[str, Description] = {}

    def ask(ids: Sequence[str]) -> dict[str, str]:
        found.update(client.describe(ids))
        return {tid: found[tid].error for tid in ids}

    until_final(transactional_ids, ask, timeout_ms=_ANSWER_S * 1000)
    return found


def is_known(description: Description) -> bool:
    """Whether the coordinator reported the transaction's state. Otherwise, the transaction may be open."""
    return description.error in {NONE, NOT_FOUND}


def undescribed(described: Mapping[str, Description]) -> list[str]:
    """List the transactions that may be open although no coordinator described them."""
    return sorted(tid for tid, found in described.items() if not is_known(found))
