"""How long a probe waits for a group that commits its offsets, and how its transactions end. The clock is simulated."""

from __future__ import annotations

import contextlib
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from twopc.errors import RetriableError, TwoPhaseCommitError
from twopc.integration.migrate import probe
from twopc.integration.preflight.findings import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

WANTED: Final = probe.Probe(group="billing", topic="orders", wait_s=120, hold_s=15)


class Cluster:
    """A partition, and a group that reads every record immediately and commits its position at certain times."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, commits_at: Callable[[float], bool], *, committed: bool
    ) -> None:
        self.now = 0.0
        self.is_committed_only = committed
        self.end = self.stable = self.offset = 0
        self._commits_at = commits_at
        monkeypatch.setattr(probe, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        before, self.now = self.now, self.now + seconds
        if self._commits_at(self.now) and not self._commits_at(before):
            self.offset = self.stable if self.is_committed_only else self.end

    # -- the writer

    def write(self, value: bytes, partitions: Collection[int]) -> dict[int, int]:
        del value
        self.end += 1
        return dict.fromkeys(partitions, self.end - 1)

    def commit(self) -> None:
        self.end = self.stable = self.end + 1  # the control record

    abort = commit


class Group(probe._Group):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cast("Any", None), WANTED, "orders", 0)
        object.__setattr__(self, "cluster", cluster)

    def behind(self, marks: Any) -> dict[int, int]:
        offset = cast("Any", self).cluster.offset
        return {number: offset for number, mark in marks.items() if offset > mark}


@pytest.mark.parametrize("offset_s", [0.3, 1, 20, 39])
@pytest.mark.parametrize("reads", [Result.PASS, Result.FAIL], ids=["committed", "uncommitted"])
def test_the_transaction_stays_open_for_whole_commit_intervals_of_the_group(
    offset_s: float, reads: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group commits every 40 s, and its next commit comes at any time after the probe's first record."""
    cluster = Cluster(
        monkeypatch, lambda now: (now - offset_s) % 40 < 1 and now >= offset_s, committed=reads is Result.PASS
    )
    [finding] = probe._tried(WANTED, cast("Any", cluster), Group(cluster), [0])
    assert finding.result is reads


def test_a_group_that_commits_only_once_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, lambda now: 1 <= now < 2, committed=False)
    [finding] = probe._tried(WANTED, cast("Any", cluster), Group(cluster), [0])
    assert finding.result is Result.WARN


class Producer:
    """A producer with the given partitions that do not acknowledge a record, and the errors of an abort."""

    def __init__(
        self, *, silent: Collection[int] = (), refused: Collection[int] = (), aborts: Sequence[int] = ()
    ) -> None:
        self._silent, self._refused, self._aborts = silent, refused, list(aborts)
        self.calls: list[str] = []
        self.is_open = False

    def init_transactions(self, _timeout_s: float) -> None: ...

    def begin_transaction(self) -> None:
        self.is_open = True

    def produce(self, topic: str, value: bytes, *, partition: int, headers: Any, on_delivery: Any) -> None:
        del topic, value, headers
        if partition not in self._silent:
            error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED) if partition in self._refused else None
            on_delivery(error, SimpleNamespace(partition=lambda: partition, offset=lambda: 5))

    def flush(self, _timeout_s: float) -> None: ...

    def commit_transaction(self, _timeout_s: float) -> None:
        self.calls.append("commit")
        self.is_open = False

    def abort_transaction(self, _timeout_s: float) -> None:
        self.calls.append("abort")
        if self._aborts:
            raise KafkaException(KafkaError(self._aborts.pop()))
        if not self.is_open:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.is_open = False


@contextlib.contextmanager
def writing(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> Iterator[probe._Writer]:
    monkeypatch.setattr(probe, "Producer", lambda _: producer)
    sink: Any = SimpleNamespace(timeout_ms=1_000, producer_config=dict)
    with probe._writing(sink, "orders", "s.probe-1") as writer:
        yield writer


@pytest.mark.parametrize("failing", ["silent", "refused"])
def test_a_record_that_was_not_acknowledged_everywhere_is_not_committed(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit waits for the acknowledgments, so it could publish the record that calls itself aborted."""
    producer = Producer(**{failing: [1]})
    why = "did not accept the probe's records" if failing == "silent" else "Write on the topic orders"
    with pytest.raises(TwoPhaseCommitError, match=why), writing(producer, monkeypatch) as writer:
        writer.write(probe._ABORTED, [0, 1])
    assert producer.calls == ["abort"]
    assert not producer.is_open


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RetriableError("the group does not respond")])
def test_an_interrupted_probe_leaves_no_transaction_open(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer()
    with pytest.raises(type(error)), writing(producer, monkeypatch) as writer:
        interrupted(writer, error)
    assert not producer.is_open


def interrupted(writer: probe._Writer, error: BaseException) -> None:
    writer.write(probe._ABORTED, [0])
    raise error


def test_a_probe_whose_transaction_cannot_be_aborted_says_how_long_readers_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    producer = Producer(aborts=[KafkaError._TIMED_OUT])
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt), writing(producer, monkeypatch) as writer:
        interrupted(writer, KeyboardInterrupt())
    [said] = caplog.messages
    assert "s.probe-1" in said and "read_committed readers of orders wait" in said


def test_a_probe_without_an_open_transaction_ends_silently(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), writing(Producer(), monkeypatch) as writer:
        writer.write(probe._COMMITTED, [0])
        writer.commit()
    assert not caplog.messages
