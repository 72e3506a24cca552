"""Define the goals, and judge whether the kept results meet them. A goal limits a time, or the ratio of two sides in one run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from benchmarks.measured import COLLECTS, TRIGGER_TIME, TWO_PHASES, TWOPC, short
from benchmarks.peers.producer_performance import LARGE_BATCHES

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.measured import Results, Spread


class Verdict(Enum):
    """Whether the results meet a goal."""

    MET = "met"
    MISSED = "missed"
    UNKNOWN = "not measured"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One goal.

    Attributes:
        says: the goal in words.
        group: the group whose results show whether the goal is met.
        case: the case in the group.
        side: the side whose figure counts. If the group does not have this side, ``otherwise`` counts.
        to: the side whose figure divides the figure; None: the figure itself counts.
        limit: the bound for the median.
        at_most: whether the limit is an upper bound.
        fact: the name of the case's fact that counts; None: the case's samples count.
        otherwise: see ``side``.
    """

    says: str
    group: str
    case: str
    to: str | None
    limit: float
    at_most: bool = True
    side: str = TWOPC
    fact: str | None = None
    otherwise: str | None = None

    def figure(self, results: Results | None) -> str:
        """Return the measured figure with its spread."""
        found = self._found(results)
        if isinstance(found, float):
            return short(found)
        return str(found) if found is not None else ""

    def verdict(self, results: Results | None) -> Verdict:
        """Judge whether the median is within the limit."""
        found = self._found(results)
        if found is None:
            return Verdict.UNKNOWN
        median = found if isinstance(found, float) else found.median
        is_met = median <= self.limit if self.at_most else median >= self.limit
        return Verdict.MET if is_met else Verdict.MISSED

    def _found(self, results: Results | None) -> Spread | float | None:
        case = results.case(self.case) if results else None
        if case is None:
            return None
        if self.fact is not None:
            by_side = case.facts.get(self.fact, {})
            found = by_side.get(self.side, by_side.get(self.otherwise or ""))
            divisor = 1.0 if self.to is None else by_side.get(self.to)
            return None if found is None or divisor is None else found / divisor
        side = self.side if self.side in case.samples else self.otherwise
        if side not in case.samples or (self.to is not None and self.to not in case.samples):
            return None
        return case.spread(side) if self.to is None else case.ratio(side, self.to)


_SPARK = "Spark's own sink (at least once)"


def _as_long(limit: float) -> str:
    return "no longer than" if limit == 1 else f"at most {limit:g} times as long as"


def _streaming(rows: str, limit: float, *, two_phases: bool = False) -> Goal:
    kind = "in two phases" if two_phases else "with the defaults"
    return Goal(
        says=f"a batch of {rows} {kind} takes {_as_long(limit)} with Spark's own sink",
        group="streaming",
        case=rows,
        side=TWO_PHASES if two_phases else TWOPC,
        otherwise=TWOPC if two_phases else None,
        to=_SPARK,
        limit=limit,
    )


def _shuffled(partitions: str) -> Goal:
    return Goal(
        says=f"200,000 rows in two phases, shuffled into {partitions}, take {_as_long(1.1)} with Spark's own sink",
        group="shuffled",
        case=partitions,
        side=TWO_PHASES,
        otherwise=TWOPC,
        to=_SPARK,
        limit=1.1,
    )


def _uneven(rows: str, case: str) -> Goal:
    says = f"{rows} take at most 1.1 times as long as with Spark's own sink"
    return Goal(says=says, group="skew", case=case, to=_SPARK, limit=1.1)


def _lakehouse(table: str, rows: str) -> Goal:
    return Goal(
        says=f"writing {rows} rows to {table} takes {_as_long(1.2)} with Spark's own writer",
        group="lakehouse",
        case=f"{table}, {rows} rows",
        to="Spark's own writer",
        limit=1.2,
    )


def _shuffled_sink(store: str) -> Goal:
    return Goal(
        says=f"writing 100,000 rows to {store} from 200 partitions takes {_as_long(1.3)} from 2 partitions",
        group="shuffledsinks",
        case=f"{store}, 200 partitions",
        to="twopc, 2 partitions",
        limit=1.3,
    )


def _rate(says: str, group: str, case: str, to: str, limit: float) -> Goal:
    return Goal(says=says, group=group, case=case, to=to, limit=limit, at_most=False)


def _time(says: str, group: str, case: str, limit: float) -> Goal:
    return Goal(says=says, group=group, case=case, to=None, limit=limit)


#: The goals, in the order of docs/performance.md.
GOALS: tuple[Goal, ...] = (
    _streaming("100 rows", 1.2),
    _streaming("2,000 rows", 1.0),
    _streaming("20,000 rows", 0.85),
    _streaming("100,000 rows", 0.85),
    Goal(
        says="a batch of 2,000 rows takes at most 1.5 times as long as with a function that only collects the rows",
        group="waterfall",
        case="2,000 rows",
        to=COLLECTS,
        limit=1.5,
    ),
    Goal(
        says="the whole trigger of a batch of 2,000 rows takes at most 1.25 times as long as with Spark's own sink",
        group="streaming",
        case="2,000 rows",
        to=_SPARK,
        limit=1.25,
        fact=TRIGGER_TIME,
    ),
    _streaming("2,000 rows", 2.5, two_phases=True),
    _streaming("400,000 rows", 1.0, two_phases=True),
    _shuffled("64 partitions"),
    _shuffled("200 partitions"),
    _uneven(
        "200,000 rows, half of them in one of 200 partitions,", "half of the rows in one partition, 200 partitions"
    ),
    _uneven("200,000 rows in 200 partitions, one of them slow,", "one slow partition, 200 partitions"),
    _uneven(
        "200,000 rows in 200 partitions, after a costly SQL expression,", "a costly SQL expression, 200 partitions"
    ),
    _uneven("200,000 rows in 200 partitions, after a costly Python UDF,", "a costly Python UDF, 200 partitions"),
    _uneven("1,000,000 rows in 200 partitions", "1,000,000 rows, 200 partitions"),
    _rate(
        "the write phase is at least 0.9 times as fast as Kafka's ProducerPerformance (transactional, batch.size=1000000)",
        "write",
        "write phase",
        LARGE_BATCHES,
        0.9,
    ),
    _rate(
        "twopc copies from Kafka to Kafka at least 4 times as fast as Flink with exactly-once",
        "peers",
        "Kafka to Kafka",
        "Flink, exactly once",
        4,
    ),
    _rate(
        "twopc copies from Kafka to Kafka at least 4 times as fast as Quix Streams with exactly-once",
        "peers",
        "Kafka to Kafka",
        "Quix Streams, exactly once",
        4,
    ),
    _time("the driver proves 2 transactions within 10 ms", "decision", "2 transactions", 10),
    _time("the driver proves 200 transactions within 100 ms", "decision", "200 transactions", 100),
    _time("after 10 other batches, a restart recovers a decided batch within 1 s", "past", "10 batches", 1000),
    _time(
        "after 100,000 other batches, a restart recovers a decided batch within 1 s", "past", "100,000 batches", 1000
    ),
    Goal(
        says="a task needs at most 100 MiB more memory for 1,000,000 rows than for 100,000 rows",
        group="rows",
        case="1,000,000 rows",
        side=TWO_PHASES,
        otherwise=TWOPC,
        to=None,
        limit=100,
        fact="increase in worker memory from 100,000 rows, MiB",
    ),
    _rate(
        "SET (upsert) is at least 0.8 times as fast as with a redis-py pipeline",
        "redis",
        "SET (upsert)",
        "redis-py, a pipeline",
        0.8,
    ),
    _rate(
        "an append to PostgreSQL is at least 2 times as fast as with Spark's jdbc writer",
        "postgres",
        "append to PostgreSQL",
        "Spark's jdbc writer",
        2,
    ),
    _rate(
        "the sink upserts into PostgreSQL at least as fast as tasks that each fill a stage and run INSERT ... ON CONFLICT",
        "postgres",
        "upsert into PostgreSQL",
        "a stage and ON CONFLICT in each task",
        1,
    ),
    *(_lakehouse(table, rows) for table in ("Iceberg", "Delta") for rows in ("20,000", "1,000,000")),
    *map(_shuffled_sink, ("Redis", "HBase", "PostgreSQL", "Iceberg", "Delta")),
    _rate(
        "a Put of 1 cell (upsert) is at least 0.8 times as fast as with the same client in batches",
        "hbase",
        "Put, 1 cell (upsert)",
        "the same client, batched",
        0.8,
    ),
)


def verdicts(results_of: Callable[[str], Results | None]) -> list[tuple[Goal, str, Verdict]]:
    """Return each goal with its figure and its verdict."""
    return [(goal, goal.figure(found), goal.verdict(found)) for goal in GOALS for found in [results_of(goal.group)]]
