"""The memory of rule 6 forgets most stages that read a long-lived table, and no judgment changes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from tests.unit.test_spark_shuffles import Store
from twopc.errors import FatalError, RetriableError
from twopc.integration.spark import computed_rdds
from twopc.integration.spark.computed_rdds import ComputedRdds, _up_to
from twopc.integration.spark.job_history import JobHistory
from twopc.integration.spark.mixed_rows import OwnStages, judge
from twopc.integration.spark.reports import Job, Moment, StageAttempt
from twopc.integration.spark.shuffles import Shuffles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    Stages = Mapping[int, Sequence[StageAttempt]]

#: A cached table and the RDD from which it was computed. Every batch of a query reads the table.
TABLE = (7, 6)


@dataclass
class Everything:
    """Remembers every attempt for each of its RDDs."""

    attempts: dict[int, dict[tuple[int, int], StageAttempt]] = field(default_factory=dict)

    def record(self, stages: Stages) -> None:
        for one in (one for attempts in stages.values() for one in attempts):
            for rdd in one.rdd_ids:
                self.attempts.setdefault(rdd, {})[one.stage_id, one.attempt_id] = one

    def of(
        self, rdds: Collection[int], part: Callable[[int, StageAttempt], StageAttempt] = lambda _, one: one
    ) -> list[StageAttempt]:
        found = {key: part(rdd, one) for rdd in sorted(rdds) for key, one in self.attempts.get(rdd, {}).items()}
        return [found[key] for key in sorted(found)]


@dataclass
class History:
    """Random stages, recorded by a memory and by one that forgets nothing."""

    chance: random.Random
    unended: float = 0.0  #: how many of the stages have not ended
    memory: ComputedRdds = field(default_factory=ComputedRdds)
    everything: Everything = field(default_factory=Everything)
    stages: dict[int, list[StageAttempt]] = field(default_factory=dict)

    def run(self, rdds: tuple[int, ...], begin: int, *, reads: bool, writes: bool, attempts: int = 1) -> int:
        """Run a stage; return its number. An earlier report, while it runs, shows less. Some shuffles get no rows."""
        stage, rows = len(self.stages), self.chance.choice((0, 9, 9)) * writes
        ends = begin + self.chance.choice((1, 2, 3, 3, 30))
        whole = [
            StageAttempt("COMPLETE", stage, n, rdds, 9 * reads, rows, begin + n, 1, ends + n, writes=writes or None)
            for n in range(attempts)
        ]
        if self.chance.random() < self.unended:
            whole[-1] = structs.replace(whole[-1], completion_time=None)
        if self.chance.random() < 0.3:
            self._record({stage: [StageAttempt("ACTIVE", stage, 0, rdds, 0, 0, begin)]})
        self.stages[stage] = whole
        self._record({stage: whole})
        return stage

    def _record(self, stages: Stages) -> None:
        self.memory.record(stages)
        self.everything.record(stages)

    def judgments(
        self,
        own: Collection[int],
        behind: Collection[tuple[int, ...]],
        cached: set[int],
        part: Callable[[int, StageAttempt], StageAttempt] = lambda _, one: one,
    ) -> tuple[str, str]:
        """Judge a batch with everything, and with what the memory has kept."""
        mine = {stage: self.stages[stage] for stage in own}
        stages = OwnStages({stage: found[-1] for stage, found in mine.items()}, set(own), set())
        rdds = {rdd for last in stages.last.values() for rdd in last.rdd_ids}.union(*behind)
        set_back_after = self.chance.choice((0, 0, 0, 0, 5))  # by the oldest RDD

        def judgment(ran: Sequence[StageAttempt]) -> str:
            try:
                judge(stages, ran, behind, cached.intersection, lambda among: min(among) < set_back_after)
            except (FatalError, RetriableError) as error:
                return type(error).__name__
            return "decided"

        return judgment(self.everything.of(rdds, part)), judgment(self.memory.of(rdds, mine))


def test_what_is_forgotten_never_changes_a_judgment() -> None:
    """The histories have random RDDs, caches, times and reruns."""
    seen = Counter[str]()
    for seed in range(600):
        chance = random.Random(seed)
        history = History(chance, unended=chance.choice((0.0, 0.1)))
        tails = [tuple(sorted(chance.sample(range(8), chance.randint(1, 3)), reverse=True)) for _ in range(2)]
        span = chance.choice((60, 600))  # how crowded the times are
        for _ in range(30):
            tail, begin = chance.choice(tails), chance.randrange(span)
            if chance.random() < 0.3:  # a shuffle, whose loss may cause a rerun
                history.run((chance.choice((60, 61)),), begin, reads=False, writes=True, attempts=chance.randint(1, 2))
                continue
            rdds = (chance.choice([8, 9, *range(10, 60)]), *tail) if chance.random() < 0.6 else tail
            reads, writes = chance.random() < 0.8, chance.random() < 0.05
            history.run(rdds, begin, reads=reads, writes=writes, attempts=1 + (chance.random() < 0.03))
        for _ in range(6):
            mine = chance.sample(range(30), chance.randint(1, 4))
            behind = {history.stages[stage][-1].rdd_ids for stage in chance.sample(range(30), chance.randint(0, 2))}
            cached = set(chance.sample(range(60), chance.choice((3, 20))))
            expected, found = history.judgments(mine, behind, cached, _up_to)
            assert found == expected, f"seed {seed}"
            seen[found] += 1
    assert min(seen["decided"], seen["RetriableError"], seen["FatalError"]) > 30


def test_queries_that_read_cached_tables_for_many_batches_are_judged_as_if_nothing_was_forgotten() -> None:
    """Each query joins its own table, filled from a shuffle. Executors die, so shuffles are written again and stages rerun."""
    seen = Counter[str]()
    for seed in range(80):
        chance = random.Random(seed)
        history = History(chance)
        tables = [((3, 2), (1,)), ((7, 6), (5,))]  # the table's RDDs, and those of the shuffle that it was filled from
        now = 0
        for _, shuffle in tables:
            history.run(shuffle, now, reads=False, writes=True, attempts=chance.choice((1, 1, 2)))
            now += 3
        for rdd in range(100, 900, 20):
            table, shuffle = chance.choice(tables)
            now += 10
            own = [
                history.run((rdd, rdd - 1, *table), now, reads=False, writes=True, attempts=1 + (chance.random() < 0.1))
            ]
            if chance.random() < 0.02:
                history.run(shuffle, now + chance.randrange(9), reads=False, writes=True)  # a lost part
            if chance.random() < 0.5:
                own.append(history.run((rdd + 2, rdd + 1, *table), now + 4, reads=True, writes=chance.random() < 0.5))
            own.append(
                history.run(
                    (rdd + 4, rdd + 3, *table), now + 6, reads=True, writes=False, attempts=1 + (chance.random() < 0.02)
                )
            )
            expected, found = history.judgments(own, {shuffle}, {3, 7})
            assert found == expected, f"seed {seed}"
            seen[found] += 1
    assert min(seen["decided"], seen["FatalError"]) > 100


def test_a_stage_that_may_have_read_a_later_write_of_a_shuffle_is_remembered() -> None:
    """Stage 4 ran for a long time, and stage 6 still runs. Stage 0 may have read an earlier write."""
    memory = ComputedRdds()
    for stage in range(10):
        ended = {4: 900, 6: None}.get(stage, 10 * stage + 3)
        memory.record({stage: [StageAttempt("COMPLETE", stage, 0, (100 + stage, *TABLE), 9, 0, 10 * stage, 1, ended)]})
    assert [one.stage_id for one in memory.of(TABLE, {})] == [0, 4, 6]


@pytest.mark.parametrize(("reads", "writes"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_table_that_thousands_of_batches_read_costs_each_batch_the_same(*, reads: bool, writes: bool) -> None:
    """Whether a stage with the table collects a broadcast, writes a shuffle, reads one, or both."""
    memory = ComputedRdds()
    for batch in range(3_000):
        rdd = 100 + 10 * batch
        stage = StageAttempt("COMPLETE", batch, 0, (rdd, *TABLE), 9 * reads, 9 * writes, batch, 1, batch)
        memory.record({batch: [stage]})
    assert memory.have_run(TABLE)
    assert len(memory.of(TABLE, {})) <= 2
    assert max(map(len, memory._attempts.values())) <= 2


def test_an_rdd_that_thousands_of_jobs_compute_costs_each_job_the_same() -> None:
    """Every second job finds the RDD's rows in a cache, and reads no shuffle."""
    memory = ComputedRdds()
    for batch in range(3_000):
        reads = 9 * (batch % 2)
        memory.record({batch: [StageAttempt("COMPLETE", batch, 0, TABLE, reads, 0, batch, 1, batch)]})
    assert len(memory.of(TABLE, {})) <= 4


def test_a_query_that_joins_a_cached_table_decides_thousands_of_batches_with_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the batches, jobs of others run, and RDD numbers are used up, so that neither is consecutive."""
    monkeypatch.setattr(computed_rdds, "_MAX_RDDS", 50)
    monkeypatch.setattr(computed_rdds, "_MAX_RANGES", 20)
    monkeypatch.setattr("twopc.integration.spark.job_history._MAX_RANGES", 20)
    store = Store({"": [Job(0, (0,), is_over=True)]}, {0: [StageAttempt("COMPLETE", 0, 0, TABLE, 0, 0, 1, 1, 1)]})
    store.retained = 10_000
    history = JobHistory(store)
    shuffles = Shuffles(history)
    for batch in range(1, 1_000):
        job, rdd = 2 * batch, 10 * batch + 10
        store.moment = Moment(rdd, job)
        store.jobs = {f"{batch}": [Job(job, (job,), is_over=True)]}
        store.stages = {job: [StageAttempt("COMPLETE", job, 0, (rdd + 1, *TABLE), 0, 0, batch, 1, batch)]}
        shuffles.begin()
        shuffles.check(f"{batch}", {job}, lambda: None)
    assert sum(map(len, history.computed._attempts.values())) <= 60
    assert len(history.computed._dropped._starts) <= 20
    assert len(history._examined._starts) <= 20
    assert history.computed.are_known(TABLE)
    assert not history.computed.are_known([23])
