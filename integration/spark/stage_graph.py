"""Find out from the RDDs of a stage whether the stage may have read a shuffle.

The number of records that a stage has read does not show this. Spark adds up a task's records only when the task has read
all of them, or with a heartbeat. So if a LIMIT ends a task early, Spark reports that the task has read nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

#: The sign of a storage level that keeps rows on disk, in Spark's description of the level.
_ON_DISK: Final = "Disk"


@dataclass(frozen=True)
class StageGraph:
    """The RDDs of a stage, as in the picture of the stage in Spark's UI.

    Attributes:
        edges: the dependencies inside the stage, each as an RDD and the RDD that was computed from it.
        reading: the RDDs that read another stage's shuffle.
        cached: the RDDs that the program has cached. Their rows may be lost.
    """

    edges: Iterable[tuple[int, int]]
    reading: Collection[int]
    cached: Collection[int]

    def may_read(self, level_of: Callable[[int], str | None]) -> bool:
        """Whether the stage may read a shuffle without a record of it.

        If a partition of a cached RDD is not in the cache, a task normally computes the whole partition. The task then also reads
        the whole shuffle behind the partition, and Spark reports this. But if the partition may not go to disk and does not fit
        into memory, the task computes only the rows that it needs.

        Args:
            level_of: returns a description of a cached RDD's storage level, or None if Spark no longer caches the RDD.
        """
        later: dict[int, set[int]] = {}
        for rdd, computed in self.edges:
            later.setdefault(rdd, set()).add(computed)
        open_, seen = set(self.reading), set[int]()
        while open_:
            rdd = open_.pop()
            seen.add(rdd)
            if rdd in self.cached and _ON_DISK in (level_of(rdd) or ""):
                continue
            if rdd not in later:
                return True  # the rows reach the end of the stage
            open_ |= later[rdd] - seen
        return False


class _Edge(msgspec.Struct, frozen=True, rename="camel"):
    from_id: int
    to_id: int


class _Node(msgspec.Struct, frozen=True):
    id: int


class _Cluster(msgspec.Struct, frozen=True, rename="camel"):
    cached_nodes: tuple[_Node, ...]


class GraphData(msgspec.Struct, frozen=True, rename="camel"):
    """Spark's ``RDDOperationGraph`` (``org.apache.spark.ui.scope``), with the fields that the check needs."""

    edges: tuple[_Edge, ...]
    incoming_edges: tuple[_Edge, ...]
    root_cluster: _Cluster

    @property
    def graph(self) -> StageGraph:
        """The graph, as the check needs it."""
        return StageGraph(
            [(edge.from_id, edge.to_id) for edge in self.edges],
            {edge.to_id for edge in self.incoming_edges},
            {node.id for node in self.root_cluster.cached_nodes},
        )
