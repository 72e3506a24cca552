"""Rule 10: the same batch id does not mean the same batch.

Suppose that a checkpoint is copied, restored from a backup, rewound, deleted, or used without the sink. If the ledger has decided
its next batch id, the rows of that batch are skipped and lost. If not, they are duplicated. A start that must be refused must not
fence a healthy driver, and must leave the ledger unchanged.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from tests.live.pipeline import Tasks, opened
from tests.live.rules.schedules import Play, crash
from tests.reader import consumer_of, read_to_end
from twopc.batch import Batch
from twopc.coordinator import Coordinator
from twopc.errors import RefusedStartError
from twopc.files import LocalFiles
from twopc.integration.spark.checkpoint import query_id, source_offsets
from twopc.override import Overrides, ResumeAt
from twopc.records import Begin
from twopc.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


OLD_FILES = ["/in/a.csv", "/in/b.csv"]


def everything_in(play: Play, partition: int = 0) -> tuple[tuple[int, int], list[tuple[int, bytes | None]]]:
    """A ledger partition as stored: start, end (aborted and control records count), and each record."""
    with closing(consumer_of(play.bootstrap_servers, isolation="read_uncommitted")) as consumer:
        low, high = consumer.get_watermark_offsets(TopicPartition(play.sink.ledger, partition), timeout=10)
        records = read_to_end(consumer, play.sink.ledger, [partition])
        return (low, high), [(record.offset() or 0, record.value()) for record in records]


def elsewhere(play: Play, tmp_path: Path, overrides: Overrides | None = None) -> Coordinator:
    """A driver with the same sink and another checkpoint directory."""
    settings = Settings(overrides=overrides or Overrides())
    driver = Coordinator([play.sink], LocalFiles(tmp_path / "elsewhere" / "twopc"), settings=settings)
    opened.append(driver)
    return driver


def history(batch: int, offsets: str, *, before: str | None, query_id: str) -> Batch:
    """A checkpoint at ``batch`` with ``offsets`` for it, and ``before`` for the batch before it."""
    known = {batch: (offsets,)} | ({} if before is None else {batch - 1: (before,)})
    return Batch(query_id, batch, known[batch], known.get)


#: The ledger contains the decisions on batches 0 to 2, with the offsets "offset-<batch>". Each name stands for a batch,
#: its offsets, and the offsets before it.
REFUSED: dict[str, tuple[int, str, str | None]] = {
    "copied, the decided batch has other offsets": (2, "offset-2'", "offset-1"),
    "copied, the batch before the next has other offsets": (3, "offset-3", "offset-2'"),
    "copied, the batch before the next is missing": (3, "offset-3", None),
    "rewound": (1, "offset-1", "offset-0"),
    "gap": (4, "offset-4", "offset-3"),
}


WAYS_OUT = r"override=EndQuery\('query-\w+'\)|override=ResumeAt\(4, 'query-\w+'\)\."


def test_a_different_history_of_a_checkpoint_is_refused_and_the_running_query_continues(
    play: Play, tmp_path: Path
) -> None:
    """Fails if offsets are not compared, or only after the acquisition, which fences the running query."""
    healthy = play.driver()
    for batch in range(3):
        healthy.process(play.batch(batch), Tasks(play, [[f"{batch}"]]))
    before = everything_in(play)
    engine = Tasks(play, [["intruder"]])
    for case, (batch, offsets, prior) in REFUSED.items():
        checkpoint = history(batch, offsets, before=prior, query_id=play.query_id)
        with pytest.raises(RefusedStartError, match=rf"batch {batch}\b.*({WAYS_OUT})") as caught:
            elsewhere(play, tmp_path).process(checkpoint, engine)
        assert caught.value.case == case.split(",")[0]
        assert everything_in(play) == before, case
    assert (engine.prepared, engine.evaluated) == (0, 0)
    assert not (tmp_path / "elsewhere").exists()
    healthy.process(play.batch(3), Tasks(play, [["3"]]))
    assert play.visible() == {"0": 1, "1": 1, "2": 1, "3": 1}


def test_a_gap_is_accepted_only_at_the_batch_given_in_the_refusal(play: Play) -> None:
    """Rule 10. Caught mutations: any gap is accepted once the setting is there; the begin record ends the query itself."""
    play.driver().process(play.batch(0), Tasks(play, [["0"]]))
    play.offsets[3] = ("offset-3",)
    with pytest.raises(
        RefusedStartError, match=r"override=ResumeAt\(4, 'query-\w+'\)\..*will expire \(kafka.transaction.timeout.ms\)"
    ):
        play.driver().process(play.batch(4), Tasks(play, [["4"]]))
    named = Settings(overrides=Overrides(resume_at=ResumeAt(4)))
    crash(play.driver(named), play, 4, [["4"]], "driver.decided")
    play.driver(named).process(play.batch(4), Tasks(play, [["other"]]))
    play.driver(named).process(play.batch(5), Tasks(play, [["5"]]))
    play.offsets[7] = ("offset-7",)
    for gap in (7, 8):
        with pytest.raises(RefusedStartError, match=rf"override=ResumeAt\({gap}, 'query-\w+'\)\."):
            play.driver(named).process(play.batch(gap), Tasks(play, [["lost"]]))
    play.driver().process(play.batch(6), Tasks(play, [["6"]]))
    assert play.visible() == {"0": 1, "4": 1, "5": 1, "6": 1}
    begins = [record for record in play._records() if isinstance(record, Begin)]
    assert [(begin.first_batch, begin.prior_offsets, begin.ends) for begin in begins] == [
        (0, (), None),
        (4, ("offset-3",), None),
    ]


def test_the_same_history_is_accepted_from_another_directory(play: Play, tmp_path: Path) -> None:
    """Equal offsets of the decided batch, and of the batch before the next one, are not refused."""
    healthy = play.driver()
    for batch in range(2):
        healthy.process(play.batch(batch), Tasks(play, [[f"{batch}"]]))
    moved, again = elsewhere(play, tmp_path), Tasks(play, [["1"]])
    moved.process(history(1, "offset-1", before="offset-0", query_id=play.query_id), again)
    assert (again.prepared, again.evaluated) == (0, 1)
    moved.process(history(2, "offset-2", before="offset-1", query_id=play.query_id), Tasks(play, [["2"]]))
    assert play.visible() == {"0": 1, "1": 1, "2": 1}


def test_a_new_query_under_a_used_name_is_refused_and_the_running_query_continues(play: Play, tmp_path: Path) -> None:
    """Fails if query ids are not compared (batch 0 would be "rewound"), or only after the acquisition."""
    healthy = play.driver()
    healthy.process(play.batch(0), Tasks(play, [["0"]]))
    before = everything_in(play)
    for overrides in (Overrides(), Overrides(end_query_ids={"a setting left on"})):
        with pytest.raises(RefusedStartError, match=rf"override=.*EndQuery\('{play.query_id}'\)") as caught:
            elsewhere(play, tmp_path, overrides).process(
                history(0, "offset-0", before=None, query_id="new"), Tasks(play, [["intruder"]])
            )
        assert caught.value.case == "new query"
    assert everything_in(play) == before
    healthy.process(play.batch(1), Tasks(play, [["1"]]))
    assert play.visible() == {"0": 1, "1": 1}


def test_end_query_id_commits_the_old_decision_and_records_the_end(play: Play, tmp_path: Path) -> None:
    """Fails if the old query's decided batch is swept, or if the begin record does not name the ended query."""
    crash(play.driver(), play, 0, [["a"], ["b"]], "driver.decided")
    new = elsewhere(play, tmp_path, Overrides(end_query_ids={play.query_id}))
    new.process(history(0, "offset-0", before=None, query_id="new"), Tasks(play, [["n"]]))
    assert play.visible() == {"a": 1, "b": 1, "n": 1}
    begins = [record for record in play._records() if isinstance(record, Begin)]
    assert [(begin.query_id, begin.ends) for begin in begins] == [(play.query_id, None), ("new", play.query_id)]


def test_an_ended_query_is_refused_permanently(play: Play, tmp_path: Path) -> None:
    """Fails if ended queries are ignored: an override would bring the query back."""
    play.driver().process(play.batch(0), Tasks(play, [["0"]]))
    new = elsewhere(play, tmp_path, Overrides(end_query_ids={play.query_id}))
    new.process(history(0, "offset-0", before=None, query_id="new"), Tasks(play, [["n"]]))
    before = everything_in(play)
    for overrides in (
        Overrides(),
        Overrides(end_query_ids={"new"}),
        Overrides(end_query_ids={"new"}, adopt_query_id=play.query_id),
    ):
        with pytest.raises(RefusedStartError) as caught:
            play.driver(Settings(overrides=overrides)).process(play.batch(1), Tasks(play, [["1"]]))
        assert caught.value.case == "ended query"
    assert everything_in(play) == before
    # An override that stays set admits no other query.
    with pytest.raises(RefusedStartError, match=r"override=.*EndQuery\('new'\)"):
        elsewhere(play, tmp_path, Overrides(end_query_ids={play.query_id})).process(
            history(0, "offset-0", before=None, query_id="third"), Tasks(play, [["t"]])
        )
    new.process(history(1, "offset-1", before="offset-0", query_id="new"), Tasks(play, [["m"]]))
    assert play.visible() == {"0": 1, "n": 1, "m": 1}


def test_a_checkpoint_older_than_the_sink_is_refused_and_leaves_no_trace(play: Play, tmp_path: Path) -> None:
    """Fails if any batch may be the first, or if the ledger or the binding is created before the check."""
    topics = len(play.outsider._connection.admin.list_topics())
    for overrides in (Overrides(), Overrides(adopt_query_id="another one's")):
        with pytest.raises(RefusedStartError, match=rf"override=AdoptQuery\('{play.query_id}'\)") as caught:
            play.driver(Settings(overrides=overrides)).process(play.batch(7), Tasks(play, [["7"]]))
        assert caught.value.case == "unadopted"
    assert len(play.outsider._connection.admin.list_topics()) == topics
    assert not (tmp_path / "checkpoint").exists()
    assert play.visible() == {}


def test_adopt_query_id_continues_at_the_adopted_batch_and_refuses_any_earlier_batch(
    play: Play, tmp_path: Path
) -> None:
    """Fails if the begin record has no prior offsets: a copy could then replay the batch before it."""
    adopting = Settings(overrides=Overrides(adopt_query_id=play.query_id))
    play.offsets[6] = ("offset-6",)
    driver = play.driver(adopting)
    driver.process(play.batch(7), Tasks(play, [["7"]]))
    (begin,) = [record for record in play._records() if isinstance(record, Begin)]
    assert (begin.first_batch, begin.prior_offsets) == (7, ("offset-6",))
    before = everything_in(play)
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "rewound"):
        elsewhere(play, tmp_path, Overrides(adopt_query_id=play.query_id)).process(
            history(6, "offset-6", before="offset-5", query_id=play.query_id), Tasks(play, [["6"]])
        )
    assert everything_in(play) == before
    driver.process(play.batch(8), Tasks(play, [["8"]]))
    assert play.visible() == {"7": 1, "8": 1}


class SparkCheckpoint:
    """The checkpoint of a query over a directory of files, as Spark 4.0 writes it (``{"logOffset":n}``)."""

    def __init__(self, root: Path, query: str) -> None:
        self.root = root
        self._write("metadata", json.dumps({"id": query}))

    def _write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def plan(self, batch: int, files: dict[int, list[str]], *, compacted: int | None = None) -> None:
        """Write ``offsets/<batch>`` and the source's log: ``files`` by counter, those up to ``compacted`` in one file."""
        plain = {counter: entries for counter, entries in files.items() if compacted is None or counter > compacted}
        for counter, paths in plain.items():
            self._write(f"sources/0/{counter}", "\n".join(["v1", *self._entries(counter, paths)]))
        if compacted is not None:
            old = [line for n in sorted(set(files) - set(plain)) for line in self._entries(n, files[n])]
            self._write(f"sources/0/{compacted}.compact", "\n".join(["v1", *old]))
            for counter in set(files) - set(plain):
                (self.root / f"sources/0/{counter}").unlink(missing_ok=True)
        self._write(
            f"offsets/{batch}", "\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps({"logOffset": max(files)})])
        )

    @staticmethod
    def _entries(counter: int, paths: list[str]) -> list[str]:
        return [json.dumps({"path": path, "timestamp": 1, "batchId": counter}) for path in paths]

    def batch(self, batch: int) -> Batch:
        files = LocalFiles(self.root)
        return Batch(query_id(files), batch, source_offsets(files, batch) or (), lambda n: source_offsets(files, n))


@pytest.mark.parametrize("compacted", [None, 0], ids=["plain", "compacted since"])
def test_the_same_counter_with_different_files_is_a_different_batch(
    compacted: int | None, play: Play, tmp_path: Path
) -> None:
    """Fails if only the counter is compared: ``/in/other.csv`` would be skipped."""
    original = SparkCheckpoint(tmp_path / "original", play.query_id)
    original.plan(0, {0: OLD_FILES})
    healthy = play.driver()
    healthy.process(original.batch(0), Tasks(play, [["a", "b"]]))
    copy = SparkCheckpoint(tmp_path / "copy", play.query_id)
    copy.plan(0, {0: ["/in/other.csv"]}, compacted=compacted)
    before = everything_in(play)
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "copied"):
        elsewhere(play, tmp_path).process(copy.batch(0), Tasks(play, [["c"]]))
    assert everything_in(play) == before
    original.plan(1, {0: OLD_FILES, 1: ["/in/c.csv"]})
    healthy.process(original.batch(1), Tasks(play, [["c"]]))
    assert play.visible() == {"a": 1, "b": 1, "c": 1}


def compacts_into_its_own_file(checkpoint: SparkCheckpoint) -> None:
    checkpoint.plan(1, {0: OLD_FILES, 1: ["/in/c.csv"]}, compacted=1)


def compacts_into_a_later_file(checkpoint: SparkCheckpoint) -> None:
    checkpoint.plan(1, {0: OLD_FILES, 1: ["/in/c.csv"]})
    checkpoint.plan(2, {0: OLD_FILES, 1: ["/in/c.csv"], 2: ["/in/d.csv"]}, compacted=2)


def lists_its_files_in_another_order(checkpoint: SparkCheckpoint) -> None:
    checkpoint.plan(1, {0: OLD_FILES[::-1], 1: ["/in/c.csv"]})


@pytest.mark.parametrize(
    "change", [compacts_into_its_own_file, compacts_into_a_later_file, lists_its_files_in_another_order]
)
def test_a_compaction_of_the_sources_log_changes_no_batch(
    change: Callable[[SparkCheckpoint], Any], play: Play, tmp_path: Path
) -> None:
    """Fails if the digest only reads ``sources/0/<n>``, or takes the whole compacted file."""
    checkpoint = SparkCheckpoint(tmp_path / "original", play.query_id)
    checkpoint.plan(0, {0: OLD_FILES})
    play.driver().process(checkpoint.batch(0), Tasks(play, [["a", "b"]]))
    change(checkpoint)
    restarted, replay = play.driver(), Tasks(play, [["a", "b"]])
    restarted.process(checkpoint.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    restarted.process(checkpoint.batch(1), Tasks(play, [["c"]]))
    assert play.visible() == {"a": 1, "b": 1, "c": 1}
