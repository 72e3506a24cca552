"""Build the planning table, which shows the broker resources that a load needs, from the groups ``many`` and ``decision``.

Each figure lies on a straight line through two measured sizes, as the page explains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.decision import LEDGER_KIB, STATE_KIB
from benchmarks.many import DRIVER_CONNECTIONS, IDS, LEDGER_PARTITIONS, REQUESTS, WORKER_CONNECTIONS
from benchmarks.measured import TWOPC, short
from benchmarks.report import markdown

if TYPE_CHECKING:
    from benchmarks.measured import Case, Results

_DAY_S: Final = 86_400
_COLUMNS: Final = (
    "queries",
    "rows/s each",
    "tasks per batch",
    "batches/s each",
    "connections",
    "transactional ids",
    "ledger partitions",
    "requests/s",
    "log written, MiB per day",
)
#: Typical loads: the number of queries, and each query's rows/s, tasks per batch and batches/s. Each worker runs two tasks.
_LOADS: Final = ((1, 1_000, 2, 1.0), (1, 100_000, 16, 0.2), (50, 1_000, 4, 0.2), (1_000, 100, 2, 0.1))


@dataclass(frozen=True)
class Line:
    """A straight line through the first and the last case of a group."""

    base: float
    slope: float

    @classmethod
    def through(cls, cases: list[Case], fact: str) -> Line:
        """Draw the line for a fact against ``x``."""
        points = [(case.x or 0, case.facts[fact][TWOPC]) for case in cases if fact in case.facts]
        (x, y), (far_x, far_y) = points[0], points[-1]
        slope = (far_y - y) / (far_x - x)
        return cls(y - slope * x, slope)

    def at(self, x: float) -> float:
        """Return the line's value at ``x``, but never less than 0."""
        return max(0.0, self.base + self.slope * x)


def planning_table(many: Results | None, decision: Results | None) -> str:
    """Return the table. If the data does not suffice for the lines, return a text that says which command to run."""
    if many is None or decision is None or min(len(many.cases), len(decision.cases)) < 2:  # noqa: PLR2004 - a line has two ends
        return '*Not measured yet:* `make bench ARGS="--only many --only decision"`.'
    per_query = {fact: Line.through(many.cases, fact) for fact in (DRIVER_CONNECTIONS, LEDGER_PARTITIONS, IDS)}
    log_kib = [Line.through(decision.cases, fact) for fact in (LEDGER_KIB, STATE_KIB)]
    one = many.cases[0].facts
    of_worker = one[WORKER_CONNECTIONS][TWOPC]
    of_task = max(0.0, one[REQUESTS][TWOPC] - Line.through(decision.cases, "requests").at(1))
    requests = Line.through(decision.cases, "requests")
    rows = []
    for queries, rows_s, tasks, batches_s in _LOADS:
        connections = per_query[DRIVER_CONNECTIONS].at(queries) + queries * tasks * of_worker
        ids = queries * (1 + tasks * max(1.0, per_query[IDS].at(1) - 1))
        kib = sum(line.at(tasks) for line in log_kib) * queries * batches_s * _DAY_S
        asked = queries * batches_s * (requests.at(tasks) + tasks * of_task)
        cells = (
            queries,
            rows_s,
            tasks,
            batches_s,
            connections,
            ids,
            per_query[LEDGER_PARTITIONS].at(queries),
            asked,
            kib / 1024,
        )
        rows.append([short(cell) for cell in cells])
    return markdown(_COLUMNS, rows)
