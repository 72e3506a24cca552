"""Rules 3 and 4 as tables: which of a coordinator's words let a handle be decided, and which prove its commit.

A real broker says most of them seldom, or for a moment only; what comes of them is in ``tests/live/rules``.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import kafka.errors
import pytest

from sinks.kafka.committer import KafkaCommitter
from sinks.kafka.confirm import why_not
from sinks.kafka.handle import KafkaHandle
from sinks.kafka.reports import NO_ANSWER, NONE, NOT_FOUND, Description
from twopc.handle import Evidence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEDGER = "twopc-ledger-s"
HANDLE = KafkaHandle(
    uuid="u",
    transactional_id="s.1.w.0",
    producer_id=7,
    producer_epoch=3,
    marker_partition=2,
    rows=5,
    partitions=("out:0-1,4", f"{LEDGER}:2"),
)
#: Every error that a broker can answer, by the name that the committer is given.
REFUSALS = sorted({kafka.errors.for_code(code).__name__ for code in range(1, 130)})
SOUND = Description(
    NONE,
    state="Ongoing",
    producer_id=7,
    producer_epoch=3,
    partitions=frozenset({"out:0", "out:1", "out:4", f"{LEDGER}:2"}),
)


def test_an_open_transaction_of_the_writer_with_all_its_partitions_can_be_decided() -> None:
    assert why_not(HANDLE, SOUND, LEDGER) is None


# While it is being ended it still has its partitions: nothing but the state tells.
@pytest.mark.parametrize("state", ["PrepareAbort", "PrepareCommit", "PrepareEpochFence", "Empty", "Dead"])
def test_a_transaction_that_somebody_ends_just_now_cannot_be_decided(state: str) -> None:
    assert "not Ongoing" in str(why_not(HANDLE, dataclasses.replace(SOUND, state=state), LEDGER))


@pytest.mark.parametrize("other", [{"producer_id": 8}, {"producer_epoch": 4}, {"producer_epoch": 2}])
def test_a_transaction_of_another_producer_or_epoch_cannot_be_decided(other: dict[str, Any]) -> None:
    assert "the writer had" in str(why_not(HANDLE, dataclasses.replace(SOUND, **other), LEDGER))


@pytest.mark.parametrize("gone", sorted(SOUND.partitions))
def test_a_transaction_that_lacks_any_partition_cannot_be_decided(gone: str) -> None:
    found = dataclasses.replace(SOUND, partitions=SOUND.partitions - {gone})
    assert f"lacks {gone}" in str(why_not(HANDLE, found, LEDGER))


@pytest.mark.parametrize("error", [NO_ANSWER, NOT_FOUND])
def test_an_answer_that_is_none_cannot_be_decided_upon(error: str) -> None:
    assert error in str(why_not(HANDLE, Description(error), LEDGER))


class Asked(KafkaCommitter):
    """Its coordinator answers one thing to EndTxn; its markers prove a loss."""

    def __init__(self, answer: str) -> None:
        client: Any = SimpleNamespace(
            end=lambda identities: {identity.transactional_id: answer for identity in identities},
            describe=lambda ids: dict.fromkeys(ids, Description(NOT_FOUND)),
        )
        self._client, self._timeout_ms = client, 5

    def evidence(self, handles: Sequence[KafkaHandle], scan_start: Mapping[str, Any]) -> dict[KafkaHandle, Evidence]:
        del scan_start
        return dict.fromkeys(handles, Evidence.ABORTED)


def test_none_proves_a_commit() -> None:
    assert Asked(NONE).commit([HANDLE], {}) == {HANDLE: Evidence.COMMITTED}


@pytest.mark.parametrize("answer", [NO_ANSWER, *REFUSALS])
def test_no_other_answer_proves_anything(answer: str) -> None:
    """An id that the broker has forgotten may have been aborted before: the markers decide."""
    assert Asked(answer).commit([HANDLE], {}) == {HANDLE: Evidence.ABORTED}
