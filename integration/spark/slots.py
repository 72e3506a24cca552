"""Limit a batch's tasks to the number that the cluster can use, instead of one task per partition of the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

#: Each slot gets more than one task, so that a slow task does not hold up the others.
_TASKS_PER_SLOT: Final = 2


class Slots:
    """The task slots of a cluster, for one run of a query.

    Args:
        context: Spark's context.
    """

    def __init__(self, context: SparkContext) -> None:
        conf = context.getConf()
        self._is_elastic = _is_dynamic(conf)
        # At startup, only a few of the requested executors may have registered.
        self._asked_for = _most_slots(conf) if self._is_elastic else _slots(conf)
        self._scala: Any = context._jsc.sc()  # noqa: SLF001 - no public API: spark.default.parallelism may be anything
        self._profile = self._scala.resourceProfileManager().defaultResourceProfile()

    def most_writers(self) -> int | None:
        """Return the maximum number of tasks that write one DataFrame of a batch. Make at most one call to the JVM.

        Returns:
            twice the number of tasks that the cluster can run at the same time. None means no limit, because the cluster
            grows with the number of waiting tasks.
        """
        if self._asked_for is None:
            return None
        running = 0 if self._is_elastic else int(self._scala.maxNumConcurrentTasks(self._profile))
        return _TASKS_PER_SLOT * max(1, running, self._asked_for)


def _slots(conf: SparkConf) -> int:
    of_executors = _of_executors(conf, int(conf.get("spark.executor.instances", "0") or 0))
    return max(
        of_executors, int(conf.get("spark.cores.max", "0") or 0) // _cpus(conf)
    )  # spark.cores.max applies in standalone mode


def _most_slots(conf: SparkConf) -> int | None:
    most = conf.get("spark.dynamicAllocation.maxExecutors", "")
    return _of_executors(conf, int(most)) if most and most.isdecimal() else None


def _is_dynamic(conf: SparkConf) -> bool:
    return (conf.get("spark.dynamicAllocation.enabled", "false") or "").lower() == "true"


def _of_executors(conf: SparkConf, count: int) -> int:
    return count * (int(conf.get("spark.executor.cores", "1") or 1) // _cpus(conf))


def _cpus(conf: SparkConf) -> int:
    return max(1, int(conf.get("spark.task.cpus", "1") or 1))
