"""Define the groups of cases that the benchmark can run."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.measured import Case, Missing
    from benchmarks.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Group:
    """One group.

    Attributes:
        name: the group's name, in ``--only`` and in its results.
        module: the module with ``TITLE``, ``X_LABEL`` (empty for no curve), ``cases(settings)``, which returns a mapping with the
            cases' names as keys, and ``measure(settings)``, which runs the cases and yields their results.
        rounds: the maximum number of rounds. A curve needs fewer rounds than a comparison.
        by_default: whether the group runs if no group is named. With ``--whole``, every group runs.
    """

    name: str
    module: str
    rounds: int = 1_000
    by_default: bool = True

    @property
    def title(self) -> str:
        """The group's title."""
        return cast("str", import_module(self.module).TITLE)

    @property
    def x_label(self) -> str:
        """The label for the curve's x axis."""
        return cast("str", import_module(self.module).X_LABEL)

    def cases(self, settings: Settings) -> tuple[str, ...]:
        """Return the names of the cases that these settings allow, in the order in which they run."""
        return tuple(import_module(self.module).cases(settings))

    def measure(self, settings: Settings) -> Iterable[Case | Missing]:
        """Run the group's cases."""
        # The import is late, because each group needs clients that the others do not.
        run = cast("Callable[[Settings], Iterable[Case | Missing]]", import_module(self.module).measure)
        return run(settings)


#: The groups, in the order in which they run.
GROUPS: tuple[Group, ...] = (
    Group(name="streaming", module="benchmarks.streaming"),
    Group(name="waterfall", module="benchmarks.waterfall"),
    Group(name="connect", module="benchmarks.connect", rounds=3),
    Group(name="write", module="benchmarks.write_phase"),
    Group(name="peers", module="benchmarks.copying"),
    Group(name="redis", module="benchmarks.redis_sink"),
    Group(name="postgres", module="benchmarks.postgres_sink"),
    Group(name="lakehouse", module="benchmarks.lakehouse", rounds=3),
    Group(name="smallfiles", module="benchmarks.small_files", rounds=5),
    Group(name="hbase", module="benchmarks.hbase_sink"),
    Group(name="rows", module="benchmarks.scale_rows", rounds=1),
    Group(name="tasks", module="benchmarks.scale_tasks", rounds=1),
    Group(name="shuffled", module="benchmarks.scale_shuffled", rounds=3),
    Group(name="skew", module="benchmarks.skew", rounds=3),
    Group(name="stateful", module="benchmarks.stateful", rounds=3),
    Group(name="shuffledsinks", module="benchmarks.shuffled_sinks", rounds=3),
    Group(name="values", module="benchmarks.scale_values", rounds=1, by_default=False),
    Group(name="decision", module="benchmarks.decision", rounds=7),
    Group(name="past", module="benchmarks.past", rounds=3),
    Group(name="many", module="benchmarks.many", rounds=3),
    Group(name="sinks", module="benchmarks.many_sinks", rounds=3, by_default=False),
)
