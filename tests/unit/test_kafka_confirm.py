"""Rule 3 as a table: which of a coordinator's words let a handle be decided.

A real broker is in most of these states for a moment only; what comes of them is in ``tests/live/rules``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sinks.kafka_committer import _why_not
from sinks.kafka_transactions import NO_ANSWER, NONE, NOT_FOUND, Description
from sinks.kafka_writer import KafkaHandle

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
SOUND = Description(
    NONE,
    state="Ongoing",
    producer_id=7,
    producer_epoch=3,
    partitions=frozenset({"out:0", "out:1", "out:4", f"{LEDGER}:2"}),
)


def test_an_open_transaction_of_the_writer_with_all_its_partitions_can_be_decided() -> None:
    assert _why_not(HANDLE, SOUND, LEDGER) is None


# While it is being ended it still has its partitions: nothing but the state tells.
@pytest.mark.parametrize("state", ["PrepareAbort", "PrepareCommit", "PrepareEpochFence", "Empty", "Dead"])
def test_a_transaction_that_somebody_ends_just_now_cannot_be_decided(state: str) -> None:
    assert "not Ongoing" in str(_why_not(HANDLE, dataclasses.replace(SOUND, state=state), LEDGER))


@pytest.mark.parametrize("other", [{"producer_id": 8}, {"producer_epoch": 4}, {"producer_epoch": 2}])
def test_a_transaction_of_another_producer_or_epoch_cannot_be_decided(other: dict[str, Any]) -> None:
    assert "the writer had" in str(_why_not(HANDLE, dataclasses.replace(SOUND, **other), LEDGER))


@pytest.mark.parametrize("gone", sorted(SOUND.partitions))
def test_a_transaction_that_lacks_any_partition_cannot_be_decided(gone: str) -> None:
    found = dataclasses.replace(SOUND, partitions=SOUND.partitions - {gone})
    assert f"lacks {gone}" in str(_why_not(HANDLE, found, LEDGER))


@pytest.mark.parametrize("error", [NO_ANSWER, NOT_FOUND])
def test_an_answer_that_is_none_cannot_be_decided_upon(error: str) -> None:
    assert error in str(_why_not(HANDLE, Description(error), LEDGER))
