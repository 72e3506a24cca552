"""How many tasks write a batch: as many as the cluster can use, rather than one for each partition of the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

#: More than one task for each slot, so that a slow task does not hold up the others.
_TASKS_PER_SLOT: Final = 2


def most_writers(context: SparkContext, chosen: int | None) -> int | None:
    """The maximum number of tasks that write one DataFrame of a batch.

    Args:
        context: Spark's context.
        chosen: the user's own choice.

    Returns:
        The chosen number, or else twice the number of tasks that the cluster can run at the same time. None: no limit, because
        the cluster grows with the number of waiting tasks.
    """
    if chosen is not None:
        return chosen
    slots = _slots(context)
    return None if slots is None else _TASKS_PER_SLOT * max(1, slots)


def _slots(context: SparkContext) -> int | None:
    """The slots of the executors that Spark has or will have: at the start, only a few may have registered."""
    conf = context.getConf()
    if _is_dynamic(conf):
        most = conf.get("spark.dynamicAllocation.maxExecutors", "")
        return _of_executors(conf, int(most)) if most and most.isdecimal() else None
    wanted = _of_executors(conf, int(conf.get("spark.executor.instances", "0") or 0))
    of_application = int(conf.get("spark.cores.max", "0") or 0) // _cpus(conf)  # standalone mode
    return max(_running(context), wanted, of_application)


def _is_dynamic(conf: SparkConf) -> bool:
    return (conf.get("spark.dynamicAllocation.enabled", "false") or "").lower() == "true"


def _of_executors(conf: SparkConf, count: int) -> int:
    return count * (int(conf.get("spark.executor.cores", "1") or 1) // _cpus(conf))


def _cpus(conf: SparkConf) -> int:
    """The cores that a task takes."""
    return max(1, int(conf.get("spark.task.cpus", "1") or 1))


def _running(context: SparkContext) -> int:
    """How many tasks the present executors can run (``SchedulerBackend.maxNumConcurrentTasks``)."""
    scala: Any = context._jsc.sc()  # noqa: SLF001 - no public way: spark.default.parallelism may be anything
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
