"""Random programs around ``foreachBatch``, with the product and with sinks that are broken on purpose. See :mod:`tests.users`."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from tests.live.spark_support import spark
from tests.users.__main__ import run
from tests.users.grammar import drawn
from tests.users.judge import judged
from tests.users.piece import Loose
from tests.users.play import play
from tests.users.program import Program
from tests.users.recorder import KILLED
from tests.users.runner import expected, played
from tests.users.worlds import world_of
from twopc.crash_points import crash_point

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

_LARGEST_SEED = 1_000_000_000
#: The seeds in `make test`. They are the same in every run, so if a run fails, the change is at fault. Their programs are
#: judged exactly, have no mistakes, and are interrupted: the first in a task, the second twice around its decision.
#: `make whole` and `make users` use new seeds.
_SAMPLE = (20_261_126, 20_261_223)


def test_a_seed_always_draws_the_same_program_and_every_program_is_valid_python() -> None:
    for seed in range(300):
        program = drawn(seed)
        compile(program.text, str(seed), "exec")
        assert program == drawn(seed)


def test_a_sample_of_interrupted_programs_is_correct(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    add_summary(f"seeds {_SAMPLE}")
    for seed in _SAMPLE:
        verdict = play(seed, spark, kafka.bootstrap_servers, tmp_path)
        assert not verdict.wrong, f"{verdict}\nagain: python -m tests.users --replay {seed}"
        assert verdict.rows
        assert verdict.killed
        assert not verdict.named


@pytest.mark.whole
@pytest.mark.timeout(0)
def test_many_programs_are_correct_or_refused_with_a_clear_error(add_summary: Callable[[str], None]) -> None:
    first = random.SystemRandom().randrange(_LARGEST_SEED)
    totals = run(first, _LARGEST_SEED, float(os.environ.get("TWOPC_USERS_MINUTES", "10")))
    add_summary(f"seeds from {first} on: {totals}")
    assert not totals.wrong, totals
    assert totals.rows, totals
    assert totals.killed, totals


# -- sinks that are broken on purpose ----------------------------------------------------------------------------------

PLAIN = Program(
    seed=-1,
    pieces=(),
    text=(
        "each = exactly_once(one, checkpoint_location=CHECKPOINT)\n"
        "def write(batch, batch_id):\n"
        "    each(batch.selectExpr('id AS key', 'CAST(n AS STRING) AS value'), batch_id)\n"
        "start(source(), write, CHECKPOINT)\n"
    ),
    sinks=1,
    batches=tuple(tuple({"id": f"{batch}-{row}", "n": row} for row in range(3)) for batch in range(2)),
    source="files",
    faults=("driver.decided@2=raise",),
    loose=Loose.EXACT,
    copies=1,
    mistakes=(),
    is_stateful=False,
)
TWICE = PLAIN.text.replace("    each(", "    for _ in range(2): each(")


TWO_QUERIES = (
    "def writer(each):\n"
    "    def write(batch, batch_id):\n"
    "        each(batch.selectExpr('id AS key', 'CAST(n AS STRING) AS value'), batch_id)\n"
    "    return write\n"
    "start(source(), writer(exactly_once(one, checkpoint_location=CHECKPOINT)), CHECKPOINT)\n"
    "start(source(), writer(exactly_once(two, checkpoint_location=CHECKPOINT_2)), CHECKPOINT_2)\n"
)


@pytest.mark.whole
def test_a_query_that_dies_together_with_another_one_is_not_an_error(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    program = replace(PLAIN, text=TWO_QUERIES, sinks=2, faults=("driver.fenced@1=raise",))
    world = world_of(program, kafka.bootstrap_servers, tmp_path, f"b{random.SystemRandom().getrandbits(40):x}")
    reference = expected(program, spark, world)
    outcome = played(program, spark, world)
    assert any(event.kind == KILLED for event in outcome.events), outcome.events
    assert not judged(program, reference, outcome)
    world.delete()


class Broken:
    """Replaces ``exactly_once``: Spark's own Kafka sink, which passes the crash point behind its write."""

    def __init__(self, *sinks: Any, checkpoint_location: str) -> None:
        assert checkpoint_location
        self.topic, self.servers = sinks[0].topic, sinks[0].bootstrap_servers
        self.done: set[int] = set()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        del batch_id
        self.write(frame)
        crash_point("driver.decided")

    def write(self, frame: DataFrame) -> None:
        frame.write.format("kafka").option("kafka.bootstrap.servers", self.servers).option("topic", self.topic).save()

    def close(self) -> None:
        """Nothing is open."""


class Before(Broken):
    """Says that a batch is done before it is."""

    begun: ClassVar[set[int]] = set()  # outlives the object, as a file would

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if batch_id not in self.begun:
            self.begun.add(batch_id)
            crash_point("driver.decided")
            self.write(frame)


class Silent(Broken):
    """Mistakes a second call for a repetition."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        if batch_id not in self.done:
            self.done.add(batch_id)
            self.write(frame)


class Raw(Broken):
    """Fails with an error that says nothing."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        del frame
        raise KeyError(batch_id)


@pytest.mark.parametrize(
    ("program", "broken", "told"),
    [
        (PLAIN, Broken, "too many 3"),
        (PLAIN, Before, "lost 3"),
        (replace(PLAIN, faults=(), text=TWICE, mistakes=("two calls",)), Silent, "lost 6"),
        (replace(PLAIN, faults=()), Raw, "raw error"),
    ],
)
def test_a_broken_sink_is_detected(
    program: Program,
    broken: Callable[..., Any],
    told: str,
    kafka: KafkaService,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    world = world_of(program, kafka.bootstrap_servers, tmp_path, f"b{random.SystemRandom().getrandbits(40):x}")
    reference = expected(program, spark, world)
    wrong = judged(program, reference, played(program, spark, world, broken))
    assert told in " ".join(wrong), wrong
    world.delete()
