"""Check rule 6 without Spark's status store.

A batch may be written only if its rows cannot come from two writes of one shuffle. Spark Connect does not show which stages
ran twice. So the plan must rule out two writes before any row is written. ``docs/connect.md`` lists the plans that are
allowed, and ``tests/live/test_spark_checksums.py`` shows the effect of Spark's checksums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import ConfigurationError
from twopc.integration.spark.shuffle_kinds import other_shuffles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from twopc.integration.connect.plans import Plan

#: With these settings, if Spark writes a shuffle again, it compares the new rows with the old ones. If they differ,
#: Spark reruns the stages that read the old rows, or aborts the job (SPARK-53575).
CHECKSUMS: Final = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
_SINCE: Final = (4, 1)


@dataclass(frozen=True)
class Checksums:
    """Whether Spark's checksums are in effect.

    Attributes:
        missing: the settings to change, each with the required value.
    """

    missing: tuple[str, ...]

    @classmethod
    def of(cls, session: Any) -> Checksums:
        """Ask the server for its settings."""
        version = tuple(int(part) for part in str(session.version).split(".")[:2] if part.isdecimal())
        if version < _SINCE:
            return cls(("Spark 4.1 or newer on the server",))
        # Pass no default value, so that Spark returns its own default. Since Spark 4.2, both settings are on by
        # default.
        missing = [f"{name}=true" for name in CHECKSUMS if str(session.conf.get(name)).lower() != "true"]
        # Other kinds of shuffles are untested, or Spark does not compare their rows (SPARK-54959).
        return cls((*missing, *other_shuffles(session.conf.get)))


NOT_KNOWN: Final = Checksums(
    ("an exactly_once() object that is created before the query starts, not in its foreachBatch function",)
)


def require_one_shuffle(
    batch_id: int, query: Plan, frames: Sequence[Plan], checksums: Callable[[], Sequence[Checksums]]
) -> None:
    """Check that the batch's rows cannot come from two writes of one shuffle.

    Args:
        batch_id: the batch.
        query: the query's plan.
        frames: the plans for the DataFrames to write.
        checksums: returns whether Spark's checksums were in effect just before the query started, and whether they are in
            effect now.

    Raises:
        ConfigurationError: the rows may come from two writes.
    """
    shuffles = [plan.shuffles for plan in (query, *frames)]
    # A query's own table contains no rows of the batch.
    is_shown = not (query.hides_rows or any(plan.hides_rows or plan.may_replace_batch for plan in frames))
    if is_shown and not any(shuffles) and None not in shuffles:
        return
    obstacles = _obstacles(shuffles, query, frames, checksums(), is_shown=is_shown)
    if obstacles:
        found = _described((query, *frames), is_shown=is_shown)
        raise ConfigurationError(
            f"batch {batch_id}: Spark may shuffle the batch's rows ({found}). If an executor dies, Spark may write "
            "the shuffle again with different rows, and Spark Connect does not report this. So rows could be lost or "
            "duplicated. Nothing was written. Choose one of four ways. (1) Write the batch without a shuffle. (2) Pass "
            "CheckpointConfig(spark_ui='http://127.0.0.1:4040'), with the address of Spark's UI on the server's host. The "
            "toolkit can then see which stages ran twice. (3) Let Spark compare the rows. This also requires: "
            f"{'; '.join(obstacles)}. (4) Pass CheckpointConfig(deterministic_plan=True) if every part of the plan yields "
            "the same rows each time, including a part whose rows the function has collected. This rules out rand(), unstable "
            "functions, and limits without an order. A classic session does not have this restriction"
        )


def _obstacles(
    shuffles: Sequence[int | None],
    query: Plan,
    frames: Sequence[Plan],
    checksums: Sequence[Checksums],
    *,
    is_shown: bool,
) -> list[str]:
    found = list(dict.fromkeys(missing for one in checksums for missing in one.missing))
    if len(frames) > 1:
        found.append("one DataFrame for all sinks")
    # If Spark loses cached rows, it recomputes them from the rewritten shuffle without any comparison.
    if any(plan.reads_cache for plan in (query, *frames)):
        found.append("a DataFrame that is not persisted, and a query that reads no persisted table")
    # Spark collects a broadcast table in a separate job, and never compares this job's rows with those of the next job.
    if any(plan.keeps_data and len(plan.batches) > 1 for plan in frames):
        found.append("no broadcast or subquery of the batch beside the batch itself")
    if None in shuffles or sum(map(int, filter(None, shuffles))) > 1:
        found.append("at most one shuffle in total in the query and the function")
    if not is_shown:
        found.append(
            "a plan that reads only the batch and sources, with no localCheckpoint(), no view of the batch and no rows that the "
            "function has collected"
        )
    return found


def _described(plans: Sequence[Plan], *, is_shown: bool) -> str:
    def one(plan: Plan) -> str:
        if plan.shuffles is not None:
            return str(plan.shuffles)
        return f"unknown because of {', '.join(plan.unknown)}" if any(plan.unknown) else "unknown"

    query, *frames = map(one, plans)
    hidden = "" if is_shown else ", hidden by a checkpoint, a view or collected rows: unknown"
    return f"shuffles in the query: {query}, in the DataFrames: {', '.join(frames)}{hidden}"


class Ruled:
    """See :class:`~twopc.integration.spark.mode.ShuffleCheck`: the plan was checked before the attempt."""

    def begin(self) -> None:
        """Do nothing."""

    def look(self, tag: str, *, is_collected: bool = True) -> None:
        """Do nothing."""

    def check(self, tag: str, results: Collection[int], kept_since_ms: Callable[[], float | None]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
