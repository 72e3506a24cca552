"""Once a query's run has stopped, release the resources that sinks retain in a Python worker for later tasks.

A worker outlives many queries and is not notified when a query ends. So each task carries the list of its driver's runs.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from twopc.sink import TwoPhaseCommitSink

#: The id of the driver's process. Several drivers may share Spark's workers if notebooks share a JVM.
_PROCESS: Final = uuid.uuid4().hex


@dataclass(frozen=True)
class Runs:
    """A task's run, and all runs of its driver. Each task carries this object.

    Attributes:
        mine: Spark's id for the task's run.
        running: the ids of all runs that may start more tasks, including ``mine``.
        process: the driver's process id.
    """

    mine: str
    running: frozenset[str]
    process: str = _PROCESS


#: In a worker: the sinks that tasks have written to, each with the driver's epoch, by driver process and run.
_kept: Final[dict[tuple[str, str], dict[tuple[str, int], TwoPhaseCommitSink[Any]]]] = {}


def keep(runs: Runs, sinks: Iterable[TwoPhaseCommitSink[Any]], driver_epochs: Mapping[str, int]) -> None:
    """Record that a task writes to the sinks, and release the resources that this process retains for runs that have ended."""
    for process, run in list(_kept):
        if process == runs.process and run not in runs.running:
            for (_, epoch), sink in _kept.pop((process, run)).items():
                sink.release(epoch)
    written = _kept.setdefault((runs.process, runs.mine), {})
    written.update({(sink.name, driver_epochs[sink.name]): sink for sink in sinks})
