"""How the kill loop counts the kills of its runs, and when it wakes what has outlived its server. No process is started."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from twopc.testing.kill_loop import Kill, KillLoop, Moment, Outcome, QueryFailedError, Victim, kill_loop
from twopc.testing.kill_loop.__main__ import _START
from twopc.testing.kill_loop.records import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

FROM_OUTSIDE = Kill(moment=Moment.OUTSIDE, victim=Victim.WORKER)


class Source:
    def feed(self, numbers: range) -> None:
        del numbers

    def reader(self, batch_rows: int) -> Reader:
        del batch_rows
        return Reader(format="json", options={})


class Query:
    """A run that ends when it is killed, or when it has finished a batch."""

    def __init__(self, code: int, killed: Victim = Victim.ALL, batch: Path | None = None) -> None:
        self._code = code
        self._killed = killed
        self._batch = batch
        self._is_over = killed is Victim.ALL and batch is None

    @property
    def exit_code(self) -> int | None:
        if self._batch is not None and not self._is_over:
            self._batch.touch()
            self._is_over = True
            return None
        return self._code if self._is_over else None

    def kill(self, victim: Victim) -> Victim:
        assert victim is Victim.WORKER
        self._is_over = True
        return self._killed


@dataclass
class Sessions:
    """The given runs, in this order; then one that ends at once."""

    queries: list[Query]
    zombies: list[str] = field(default_factory=list)
    woken: list[str] = field(default_factory=list)
    is_closed: bool = False

    @contextlib.contextmanager
    def started(self, run: Any, log: Path) -> Iterator[Query]:
        del run
        log.touch()
        self._log = log.name
        yield self.queries.pop(0) if self.queries else Query(0)

    def batch_finished(self) -> None:
        self.woken.append(self._log)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def loop_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sessions], KillLoop]:
    monkeypatch.setattr("twopc.testing.kill_loop.loop.settings", lambda _: {})

    def make(sessions: Sessions) -> KillLoop:
        written = iter(range(1000))
        loop = KillLoop(
            read=list,
            query="m:q",
            source=Source(),
            directory=tmp_path,
            rows=8,
            batch_rows=2,
            java_home="-",
            written=lambda: next(written),
        )
        loop._sessions = sessions
        return loop

    return make


@pytest.mark.parametrize(
    ("query", "kills", "missed"),
    [
        (Query(1, Victim.WORKER), ["outside@1 (worker)"], []),
        (Query(137, Victim.CLIENT), ["outside@1 (client)"], []),
        (Query(0, Victim.WORKER), [], ["outside@1 (worker)"]),  # this query had finished its last batch
    ],
)
def test_kills_are_counted_per_victim_unless_the_query_ended_normally(
    query: Query, kills: list[str], missed: list[str], loop_of: Callable[[Sessions], KillLoop]
) -> None:
    sessions = Sessions([query])
    loop = loop_of(sessions)
    loop.run([FROM_OUTSIDE])
    assert (loop.kills, loop.missed, sessions.queries) == (kills, missed, [])
    assert sessions.is_closed


def test_a_run_that_fails_by_itself_ends_the_loop_and_every_process(loop_of: Callable[[Sessions], KillLoop]) -> None:
    sessions = Sessions([Query(1)])
    with pytest.raises(QueryFailedError, match="exit code 1"):
        loop_of(sessions).run([FROM_OUTSIDE])
    assert sessions.is_closed


def test_a_batch_of_the_present_run_wakes_a_process_that_outlived_its_server(
    tmp_path: Path, loop_of: Callable[[Sessions], KillLoop]
) -> None:
    commits = tmp_path / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").touch()  # left by an earlier run
    sessions = Sessions([Query(1, Victim.WORKER), Query(0, batch=commits / "1")])
    loop_of(sessions).run([FROM_OUTSIDE])
    assert sessions.woken == ["run-2.log"]


def planned(directory: Path, *, ends: Sequence[int]) -> None:
    """Write the source offsets of batches, as Spark plans them."""
    offsets = directory / "checkpoint" / "offsets"
    offsets.mkdir()
    for batch, end in enumerate(ends):
        (offsets / f"{batch}").write_text(f'v1\n{{"batchWatermarkMs":{batch}}}\n{{"logOffset":{end}}}')


@pytest.mark.parametrize("with_checksum", [True, False])
def test_the_kill_after_a_batch_also_comes_if_nothing_can_hold_the_query_there(
    tmp_path: Path, loop_of: Callable[[Sessions], KillLoop], *, with_checksum: bool
) -> None:
    """The query writes with a data source. Its run ends, and then Spark's record of the last batch is deleted."""
    commits = tmp_path / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    planned(tmp_path, ends=(3, 6, 9))
    for batch in range(2):
        (commits / f"{batch}").touch()
        (commits / f".{batch}.crc").touch()
    if with_checksum:
        (commits / ".2.crc").touch()
    loop = loop_of(Sessions([Query(0, batch=commits / "2")]))
    loop.run([Kill(moment=Moment.AFTER)])
    assert (loop.kills, loop.missed) == (["after (commits/2 deleted)"], [])
    assert sorted(path.name for path in commits.iterdir()) == [".0.crc", ".1.crc", "0", "1"]


def test_the_kill_after_a_batch_is_missed_if_the_last_batch_has_no_rows(
    tmp_path: Path, loop_of: Callable[[Sessions], KillLoop]
) -> None:
    """Spark ends the run of a query with a watermark with such a batch. Its repetition would prove nothing."""
    commits = tmp_path / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    planned(tmp_path, ends=(3, 6, 6))
    loop = loop_of(Sessions([Query(0, batch=commits / "2")]))
    loop.run([Kill(moment=Moment.AFTER)])
    assert (loop.kills, loop.missed) == ([], ["after@1"])
    assert (commits / "2").exists()


def test_the_kill_after_a_batch_is_missed_if_its_run_finished_no_batch(
    tmp_path: Path, loop_of: Callable[[Sessions], KillLoop]
) -> None:
    commits = tmp_path / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").touch()
    loop = loop_of(Sessions([Query(0)]))
    loop.run([Kill(moment=Moment.AFTER)])
    assert (loop.kills, loop.missed) == ([], ["after@1"])
    assert (commits / "0").exists()


@pytest.mark.parametrize(
    ("error", "starts"), [("Python worker failed to connect back.\n\nJVM stacktrace:", 5), ("a syntax error", 1)]
)
def test_only_a_process_that_had_no_time_to_start_is_started_again(error: str, starts: int) -> None:
    tries: list[int] = []

    def start() -> None:
        tries.append(1)
        raise ValueError(error)

    with pytest.raises(ValueError, match=error.partition(".")[0]):
        _START(start)
    assert len(tries) == starts


@pytest.fixture
def killed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Iterable[int]]], Outcome]:
    """Run ``kill_loop`` for eight records, with a query that is killed once and writes nothing."""
    monkeypatch.setattr("twopc.testing.kill_loop.loop.settings", lambda _: {})
    monkeypatch.setattr("twopc.testing.kill_loop.loop.java_home", lambda: "-")
    monkeypatch.setattr("twopc.testing.kill_loop.loop.ClassicSessions", lambda *_: Sessions([Query(137)]))

    def run(read: Callable[[], Iterable[int]]) -> Outcome:
        return kill_loop(read, query="m:q", source=Source(), directory=tmp_path / "loop", rows=8, kills=1)

    return run


def test_the_records_of_an_earlier_run_do_not_count_as_proof(
    killed_once: Callable[[Callable[[], Iterable[int]]], Outcome],
) -> None:
    """The query writes nothing, but an earlier run has already written every number."""
    with pytest.raises(ValueError, match="already contains 8 records"):
        killed_once(lambda: range(8))


def test_an_output_that_does_not_exist_yet_is_empty(
    killed_once: Callable[[Callable[[], Iterable[int]]], Outcome],
) -> None:
    errors = [OSError("no such table")]

    def read() -> list[int]:
        if errors:
            raise errors.pop()
        return []

    assert killed_once(read).lost == tuple(range(8))


def test_a_directory_with_the_checkpoint_of_an_earlier_run_is_refused(
    tmp_path: Path, killed_once: Callable[[Callable[[], Iterable[int]]], Outcome]
) -> None:
    (tmp_path / "loop" / "checkpoint").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"loop is not empty"):
        killed_once(list)
