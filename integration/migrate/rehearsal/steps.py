"""Define a rehearsal's steps: one query with one checkpoint moves from the old sink to the new sink and back."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from twopc.counted import counted
from twopc.integration.demo.plan import protocol_kills
from twopc.integration.migrate.rehearsal.queries import new_query, old_query, way_back
from twopc.integration.migrate.rehearsal.topics import Continued, OldTopic, Output, moved_keys, numbers_of
from twopc.integration.services import ServiceError
from twopc.integration.services.jars import spark_kafka_jars
from twopc.testing.kill_loop import Kill, KillLoop, Moment
from twopc.testing.kill_loop.kills import BATCHES_A_KILL, planned
from twopc.testing.kill_loop.records import TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from twopc.integration.migrate.rehearsal.queries import Query

PARTITIONS: Final = 4
_NAME: Final = "rehearsal"
#: The setting that makes Spark's connector look up offsets with its consumer. By default, the connector sends a request
#: that Kafka 0.10 does not support.
_FETCHING: Final = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
_COMMAND_TIMEOUT_S: Final = 300


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a rehearsal, with the counts after the step.

    Attributes:
        name: the step's name.
        done: what the step did and found, in words.
        records: the number of records that readers receive from the output; None if they were not counted.
        lost: the number of missing input records; None if they were not counted, because some must still be written.
        doubled: the number of records beyond the expected number.
        problem: the checks that failed, in words; empty if all checks passed.
        seconds: how long the step took, in seconds.
    """

    name: str
    done: str
    records: int | None = None
    lost: int | None = None
    doubled: int | None = None
    problem: str = ""
    seconds: float = 0.0


@dataclass
class Rehearsal:
    """Moves one query from the old sink to the new sink and back.

    Attributes:
        directory: the directory for the checkpoint and logs.
        source: the source that the query reads.
        output: the topic that the query writes to. It is replaced when the output moves to another cluster.
        seed: the seed for the kills.
        batch_rows: the number of records in a batch.
        on_step: a function to call with each finished step.
        steps: the steps so far.
    """

    directory: Path
    source: Continued
    output: Output
    seed: int
    batch_rows: int
    on_step: Callable[[Step], object] = lambda _: None
    steps: list[Step] = field(default_factory=list)
    _expected: Counter[int] = field(default_factory=Counter)
    _began: float = field(default_factory=time.monotonic)
    _batch: int = -1

    @property
    def checkpoint(self) -> Path:
        """The query's checkpoint."""
        return self.directory / "checkpoint"

    def add(self, name: str, done: str, **facts: Any) -> None:
        """Record a step."""
        now = time.monotonic()
        step = Step(name=name, done=done, seconds=round(now - self._began, 1), **facts)
        self._began = now
        self.steps.append(step)
        self.on_step(step)

    # -- before --------------------------------------------------------------------------------------------------------

    def run_old(self, kills: int) -> None:
        """Run the old query, and kill it several times.

        A kill loses no rows, but duplicates rows that were already written.
        """
        # The first kill comes after a batch is written and before Spark records it, which guarantees duplicates.
        happened = self._run("old", self._old(), planned(self.seed, kills, moments=(Moment.AFTER,), crash_points=()))
        found = numbers_of(self.output.records())
        lost, doubled = difference(Counter(range(self.source.fed)), found)
        problem = (
            f"{counted(lost, 'record')} lost" if lost else ("" if doubled or not kills else "nothing is duplicated")
        )
        self.add(
            "the old sink, killed",
            f"{happened}; whole or partial batches are duplicated, as is normal for this sink",
            records=found.total(),
            lost=lost,
            doubled=doubled,
            problem=problem,
        )

    def leave_half_a_batch(self) -> None:
        """Kill the old query in the middle of a batch, and do not start it again."""
        before = self.output.written()
        # When the query is killed, one of its tasks has not yet written its rows.
        happened = self._run("half", self._old(), [Kill(moment=Moment.DURING)], ends=False)
        written = self.output.written() - before
        half = 0 < written < self.batch_rows
        self.add(
            "the old sink, killed mid-batch",
            f"{happened}; {written} of {self.batch_rows} records of the batch were written",
            records=self.output.written(),
            problem="" if half else "the batch is not half-written",
        )

    # -- the cut-over --------------------------------------------------------------------------------------------------

    def preflight(self) -> None:
        """Check that ``twopc migrate preflight`` reports nothing that prevents the cut-over."""
        source = self.source.source
        words = ["--source-bootstrap-servers", source.bootstrap_servers, "--source-topic", source.topic]
        status, report = self._command("migrate", "preflight", "--topic", self.output.topic, *words, checkpoint=False)
        counts = report.get("counts", {})
        failed = [finding["why"] for finding in report.get("findings", ()) if finding["result"] == "fail"]
        self.add(
            "twopc migrate preflight",
            ", ".join(f"{count} {result}" for result, count in counts.items()),
            problem="" if status in {0, 3} else f"status {status}: {'; '.join(failed)}",
        )

    def cut_over(self) -> None:
        """Run ``twopc migrate cutover`` as a dry run, then twice with ``--apply``. Only the first ``--apply`` writes a file."""
        words = ("migrate", "cutover", "--topic", self.output.topic)
        status, dry = self._command(*words)
        first, recorded = self._command(*words, "--apply")
        second, again = self._command(*words, "--apply")
        problem = ""
        if status or first or second or dry.get("recorded") or again.get("recorded") != recorded.get("recorded"):
            problem = f"status {status}, {first}, {second}; {dry} {recorded} {again}"
        elif recorded["handover"]["kind"] != "rest":
            problem = "no batch is unfinished"
        # From now on, each number is expected as often as it occurs in the output now, but at least once.
        self._expected = numbers_of(self.output.records())
        self._batch = dry.get("handover", {}).get("batch_id", -1)
        done = f"batch {self._batch}: {dry.get('output_records')} of its {dry.get('source_records')} records are in the output"
        self.add("twopc migrate cutover", done, records=self._expected.total(), problem=problem)

    def run_new(self, kills: int) -> None:
        """Run the transactional query, and kill it several times.

        The first kill happens during the batch that was handed over.
        """
        first = Kill(moment=Moment.POINT, point="driver.decided")
        wanted = [first, *protocol_kills(self.seed, kills - 1)][:kills]
        self._count("the new sink, killed", self._run("new", self._new(), wanted))

    def verify(self) -> None:
        """Check that ``twopc verify`` reports no error."""
        status, report = self._command("verify", "--topic", self.output.topic, checkpoint=False)
        self.add("twopc verify", "no error found", problem="" if status == 0 else f"status {status}: {report}")

    # -- the rollback --------------------------------------------------------------------------------------------------

    def roll_back(self) -> None:
        """Kill the new query after it has prepared, decided or committed a batch, and hand the checkpoint back."""
        chance = random.Random(f"back {self.seed}")  # noqa: S311 - chaos, not cryptography
        point = chance.choice(("driver.prepared", "driver.decided", "driver.committed"))
        kill = Kill(moment=Moment.POINT, point=point)
        happened = self._run("leave", self._new(), [kill], ends=False)
        status, first = self._command("migrate", "rollback")
        again, second = self._command("migrate", "rollback")
        is_same = not status and not again and first == second
        kind = first.get("handover", {}).get("kind")
        self.add(
            "twopc migrate rollback",
            f"{happened}; the checkpoint was returned to the old sink: {kind} of batch "
            f"{first.get('handover', {}).get('batch_id')}",
            records=len(self.output.records()),
            problem="" if is_same else f"status {status}, {again}: {first} {second}",
        )

    def run_back(self) -> None:
        """Wrap the old query in ``TakeOver`` and run it again, without a kill."""
        query = way_back(self.output.servers, self.output.topic, _NAME)
        self._run("back", query, [])
        self._count("the old sink again", "not killed, because it gives only at-least-once guarantees")

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _count(self, name: str, done: str) -> None:
        """Check that the output contains each input record once, or as many times as it did at the cut-over.

        Check that each key is in one partition.
        """
        records = self.output.records()
        found = numbers_of(records)
        once = Counter(range(self.source.fed))
        lost, doubled = difference(once | self._expected, found)
        problems = []
        if lost or doubled:
            problems.append("NOT exactly once")
        if moved := moved_keys(records):
            problems.append(f"keys in several partitions: {', '.join(moved)}")
        if held := self.output.held_back():
            problems.append(f"{counted(held, 'offset is', 'offsets are')} behind transactions that were left open")
        facts: dict[str, Any] = {"records": found.total(), "lost": lost, "doubled": doubled}
        self.add(name, done, problem="; ".join(problems), **facts)

    def _old(self) -> Query:
        return old_query(self.output.servers, self.output.topic)

    def _new(self) -> Query:
        query_id = json.loads((self.checkpoint / "metadata").read_text())["id"]
        return new_query(self.output.servers, self.output.topic, _NAME, query_id)

    def _run(self, name: str, query: Query, kills: Sequence[Kill], *, ends: bool = True) -> str:
        """Run a query until it has processed its input. With ``ends=False``, run it until its last kill.

        Returns:
            a description of the kills.
        """
        self.source.next_step()
        # Each run receives the same number of rows. A query that is not restarted receives one batch.
        batches = BATCHES_A_KILL * (len(kills) + 1) if ends else len(kills) + 1
        loop = KillLoop(
            read=list,
            query=query,
            source=self.source,
            directory=self.directory / name,
            checkpoint=self.checkpoint,
            rows=self.batch_rows * batches,
            batch_rows=self.batch_rows,
            spark={_FETCHING: "true", "spark.jars": ",".join(map(str, spark_kafka_jars()))},
            written=self.output.written,
            insists=ends,
        )
        loop.run(kills, ends=ends)
        if loop.missed:
            raise ServiceError(
                f"the query never reached the point where it should have been killed: {', '.join(loop.missed)}"
            )
        return f"killed {', '.join(loop.kills)}" if loop.kills else ""

    def _command(self, *words: str, checkpoint: bool = True) -> tuple[int, dict[str, Any]]:
        """Run ``twopc …`` as a user does. Return the exit status and the printed JSON."""
        given = ["--bootstrap-servers", self.output.servers, "--sink", _NAME, "--json"]
        given += ["--checkpoint", str(self.checkpoint)] if checkpoint else []
        done = subprocess.run(
            [sys.executable, "-m", "twopc.integration", *words, *given],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_TIMEOUT_S,
        )
        printed = done.stdout.strip()
        return done.returncode, dict(json.loads(printed)) if printed else {"problem": done.stderr.strip()}


def difference(expected: Counter[int], found: Counter[int]) -> tuple[int, int]:
    """Count the missing numbers and the surplus numbers."""
    return (expected - found).total(), (found - expected).total()


def new_source(servers: str, name: str) -> Continued:
    """Create a topic for the query to read, on brokers of any version."""
    source = OldTopic(servers, name, TASKS)
    Output(servers, name, TASKS).create()
    return Continued(source)
