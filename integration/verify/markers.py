"""Which decided transactions are visible: their markers, and what coordinators say of those without one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from integration.verify.cluster import Bounds
from integration.verify.decided import is_at

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from integration.verify.cluster import Cluster
    from integration.verify.decided import Decided
    from integration.verify.history import BatchId
    from sinks.kafka.markers import Marker
    from sinks.kafka.transactions import Description

#: How long a commit that is under way may take to reach every partition.
_SETTLE_S: Final = 5.0


@dataclass
class Markers:
    """The visible markers, read on from where the last look ended.

    Attributes:
        visible: by UUID.
        bounds: of the marker partitions, at the last look.
    """

    visible: dict[str, Marker] = field(default_factory=dict)
    bounds: Bounds = field(default_factory=lambda: Bounds({}, {}, {}))
    _positions: dict[int, int] = field(default_factory=dict)

    def read_on(self, cluster: Cluster) -> None:
        """Read what has become visible."""
        self.bounds = cluster.marker_bounds()
        for partition, start in self.bounds.starts.items():
            position = max(start, self._positions.get(partition, 0))
            if position < self.bounds.stable[partition]:
                found = cluster.markers(partition, position, self.bounds.stable[partition])
                self.visible.update({marker.uuid: marker for _, marker in found})
                self._positions[partition] = max(self.bounds.stable[partition], *(o + 1 for o, _ in found), position)

    def forget(self, kept: Collection[BatchId]) -> None:
        """Drop the markers of batches before the kept ones of their lineage: nothing is decided of them any more."""
        oldest: dict[str, int] = {}
        for query_id, batch in kept:
            oldest[query_id] = min(batch, oldest.get(query_id, batch))
        self.visible = {u: m for u, m in self.visible.items() if m.batch_id >= oldest.get(m.query_id, 0)}


def release(cluster: Cluster, decided: Mapping[str, Decided], last: BatchId | None) -> None:
    """Wait while the last batch's commits are under way: the coordinator knows when every partition has them."""
    ids = {one.handle.transactional_id: one.handle for one in decided.values() if one.id == last}

    def is_under_way() -> bool:
        found = cluster.transactions.describe(list(ids))
        return any(is_at(found[tid], handle) and found[tid].state == "PrepareCommit" for tid, handle in ids.items())

    try:
        Retrying(
            retry=retry_if_result(lambda under_way: under_way), stop=stop_after_delay(_SETTLE_S), wait=wait_fixed(0.05)
        )(is_under_way)
    except RetryError:
        return  # it is reported as not committed


def missing(cluster: Cluster, markers: Markers, decided: Mapping[str, Decided]) -> dict[str, Description]:
    """Decided transactions without a visible marker, as their coordinators describe them."""
    absent = [one for uuid, one in decided.items() if uuid not in markers.visible]
    if not absent:
        return {}
    found = cluster.transactions.describe([one.handle.transactional_id for one in absent])
    # What has ended before it was described has its marker by now, if it was committed.
    markers.read_on(cluster)
    return {
        one.handle.uuid: found[one.handle.transactional_id] for one in absent if one.handle.uuid not in markers.visible
    }
