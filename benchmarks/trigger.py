"""Build the rule for the trigger of a query that writes to a lakehouse table, from the group ``smallfiles``.

Each figure lies on a straight line through the first and the last measured size, as the pages explain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks import machine
from benchmarks.measured import TWOPC, short
from benchmarks.report import COLUMNS, lines, markdown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.measured import Case, Results

#: The words after the format in a case's name.
READ: Final = "read from"
COMMIT: Final = "a batch with"
#: Each block's name, with its format and that format's word for a commit.
BLOCKS: Final = {"trigger_iceberg": ("Iceberg", "snapshot"), "trigger_delta": ("Delta", "version")}
_DAY_S: Final = 86_400
_WRITERS: Final = 2
#: Common triggers, and their intervals in seconds.
_TRIGGERS: Final = (("10 seconds", 10), ("1 minute", 60), ("5 minutes", 300), ("15 minutes", 900))


def trigger_rule(results: Results | None, block: str) -> str:
    """Return a block: the format's times, the rule, and a table with what each trigger leads to in a day."""
    title, commit = BLOCKS[block]
    cases = [case for case in results.cases if case.name.startswith(f"{title}, ")] if results else []
    reading = [case for case in cases if READ in case.name]
    committing = [case for case in cases if COMMIT in case.name]
    if results is None or min(len(reading), len(committing)) < 2:  # noqa: PLR2004 - a line has two ends
        return '*Not measured yet:* `make bench ARGS="--only smallfiles"`.'
    read, per_file = _line(reading, next(iter(reading[0].samples)))
    batch, per_commit = _line(committing, TWOPC)
    files = (
        f"Each further file adds {short(per_file)} ms to a reader's {short(read)} ms. With {short(read / per_file)} more files, "
        "reading takes twice as long."
        if per_file
        else "More files did not slow a reader by more than the rounds differ."
    )
    commits = (
        f"Each {commit} in the table adds {short(per_commit)} ms to a batch's {short(batch)} ms."
        if per_commit
        else f"More {commit}s did not slow a batch by more than the rounds differ."
    )
    rows = [
        (
            every,
            short(_DAY_S / seconds),
            short(_WRITERS * _DAY_S / seconds),
            short(read + per_file * _WRITERS * _DAY_S / seconds),
            short(batch + per_commit * _DAY_S / seconds),
        )
        for every, seconds in _TRIGGERS
    ]
    columns = (
        "trigger",
        f"{commit}s per day",
        f"files per day, {_WRITERS} writers",
        "reading after a day, ms",
        "a batch after a day, ms",
    )
    return "\n\n".join(
        [
            machine.measured_when(results.heading, results.rounds),
            markdown(COLUMNS, [cells for case in (*committing, *reading) for cells in lines(case)]),
            f"**The rule.** {files} {commits}",
            markdown(columns, rows),
        ]
    )


def _line(cases: Sequence[Case], side: str) -> tuple[float, float]:
    """Return the value at the first size, and the slope from there to the last size; 0 if their rounds overlap."""
    near, far = (case.spread(side) for case in (cases[0], cases[-1]))
    distance = (cases[-1].x or 0) - (cases[0].x or 0)
    return near.median, (far.median - near.median) / distance if far.low > near.high else 0.0
