"""Rules 3 and 4 as tables: which responses of a coordinator confirm a handle, and which prove its commit.

A real broker gives most of them rarely or briefly; ``tests/live/rules`` tests their consequences.
"""

from __future__ import annotations

import dataclasses
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import kafka.errors
import pytest

from twopc.attempt import Evidence
from twopc.errors import CheckpointExpiredError, RetriableError
from twopc.sinks.kafka import reports
from twopc.sinks.kafka.committer import KafkaCommitter
from twopc.sinks.kafka.handle import KafkaHandle
from twopc.sinks.kafka.prepared import confirm, why_not
from twopc.sinks.kafka.reports import CONCURRENT, NO_ANSWER, NONE, NOT_AUTHORIZED, NOT_FOUND, Description
from twopc.sinks.kafka.settings import KafkaSettings

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
#: Every error that a broker can return, by the name that the committer receives.
REFUSALS = sorted({kafka.errors.for_code(code).__name__ for code in range(1, 130)})
SOUND = Description(
    NONE,
    state="Ongoing",
    producer_id=7,
    producer_epoch=3,
    partitions=frozenset({"out:0", "out:1", "out:4", f"{LEDGER}:2"}),
)


def test_an_open_transaction_of_the_writer_with_all_partitions_is_confirmed() -> None:
    assert why_not(HANDLE, SOUND, LEDGER) is None


# A transaction that is being ended still has its partitions; only its state differs.
@pytest.mark.parametrize("state", ["PrepareAbort", "PrepareCommit", "PrepareEpochFence", "Empty", "Dead"])
def test_a_transaction_that_is_being_ended_is_not_confirmed(state: str) -> None:
    assert "not Ongoing" in str(why_not(HANDLE, dataclasses.replace(SOUND, state=state), LEDGER))


@pytest.mark.parametrize("other", [{"producer_id": 8}, {"producer_epoch": 4}, {"producer_epoch": 2}])
def test_a_transaction_of_another_producer_or_epoch_is_not_confirmed(other: dict[str, Any]) -> None:
    assert "the rows were written by producer" in str(why_not(HANDLE, dataclasses.replace(SOUND, **other), LEDGER))


@pytest.mark.parametrize("gone", sorted(SOUND.partitions))
def test_a_transaction_with_a_missing_partition_is_not_confirmed(gone: str) -> None:
    found = dataclasses.replace(SOUND, partitions=SOUND.partitions - {gone})
    assert f"does not include {gone}" in str(why_not(HANDLE, found, LEDGER))


@pytest.mark.parametrize("error", [NO_ANSWER, NOT_FOUND])
def test_a_missing_or_unknown_transaction_is_not_confirmed(error: str) -> None:
    assert error in str(why_not(HANDLE, Description(error), LEDGER))


def test_the_reason_why_a_coordinator_does_not_respond_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: after a rotation of passwords, the error said NO_ANSWER."""
    monkeypatch.setattr(reports, "until_final", lambda ids, ask, **_: ask(list(ids)))
    client: Any = SimpleNamespace(
        describe=lambda ids: dict.fromkeys(ids, Description(NO_ANSWER)), connection_errors=lambda: ["wrong password"]
    )
    with pytest.raises(RetriableError, match=r"its coordinator does not respond \(NO_ANSWER\); wrong password"):
        confirm(client, KafkaSettings(name="s", bootstrap_servers="b:1"), [HANDLE], 0)


@pytest.mark.parametrize("passing", [NO_ANSWER, CONCURRENT])
def test_a_coordinator_that_moves_is_asked_again(passing: str) -> None:
    """All rows are written. Without the repetition, the tasks would write them again."""
    answers = [Description(passing), Description(passing), SOUND]
    client: Any = SimpleNamespace(describe=lambda ids: dict.fromkeys(ids, answers.pop(0)))
    confirm(client, KafkaSettings(name="s", bootstrap_servers="b:1"), [HANDLE], 0)
    assert not answers


def test_the_wait_for_a_coordinator_counts_toward_the_duration_of_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The transaction must still live long enough when its coordinator has responded."""
    monkeypatch.setattr(time, "monotonic", iter([0.0, 900.0]).__next__)
    monkeypatch.setattr(reports, "until_final", lambda ids, ask, **_: ask(list(ids)))
    client: Any = SimpleNamespace(describe=lambda ids: dict.fromkeys(ids, SOUND))
    with pytest.raises(CheckpointExpiredError, match="preparing the batch took 900000 ms"):
        confirm(client, KafkaSettings(name="s", bootstrap_servers="b:1"), [HANDLE], 0)


class Asked(KafkaCommitter):
    """Its coordinator always gives one response to EndTxn; its markers prove a loss, or nothing."""

    def __init__(self, answer: str, *, unread: str = "") -> None:
        self._settings = KafkaSettings(name="s", bootstrap_servers="b:1")
        self._unread = [unread] if unread else []
        client: Any = SimpleNamespace(
            coordinator_of=lambda _: "broker 3",
            connection_errors=lambda: ["wrong password"],
            end=lambda identities: {identity.transactional_id: answer for identity in identities},
            describe=lambda ids: dict.fromkeys(ids, Description(NOT_FOUND)),
        )
        self._client, self._timeout_ms = client, 5
        self._kept_rows: Any = SimpleNamespace(absent=lambda *_: {})
        self._confirmed = frozenset()

    def prove(self, handles: Sequence[KafkaHandle], scan_start: Mapping[str, Any]) -> dict[KafkaHandle, Evidence]:
        del scan_start
        return dict.fromkeys(handles, Evidence.UNKNOWN if self._unread else Evidence.ABORTED)


def test_a_response_without_an_error_proves_a_commit() -> None:
    assert Asked(NONE).commit([HANDLE], {}) == {HANDLE: Evidence.COMMITTED}


@pytest.mark.parametrize("answer", [NO_ANSWER, *REFUSALS])
def test_no_other_response_proves_a_commit(answer: str) -> None:
    """If the broker has forgotten an id, its transaction may have been aborted before, so the markers decide."""
    assert Asked(answer).commit([HANDLE], {}) == {HANDLE: Evidence.ABORTED}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (NO_ANSWER, "broker 3: no response; the markers were deleted; wrong password. "),
        (NOT_AUTHORIZED, "broker 3: not authorized. Allow Write"),
    ],
)
def test_the_error_gives_the_reason_for_an_unproven_commit_and_the_time_left(answer: str, said: str) -> None:
    """Without it the error reads "restart when every broker answers", while a right is missing and transactions expire."""
    committer = Asked(answer, unread="the markers were deleted")
    assert committer.commit([HANDLE], {}) == {HANDLE: Evidence.UNKNOWN}
    [blocker] = committer.blockers()
    for part in ("sink 's'", said, "the markers were deleted", "kafka.transaction.timeout.ms=900000"):
        assert part in blocker
    committer._unread = []
    committer.commit([HANDLE], {})
    assert committer.blockers() == []
