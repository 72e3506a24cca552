"""Which decided transactions are visible: read markers, ask coordinators about transactions without one."""

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
    from sinks.kafka.reports import Description

#: How long a running commit may take to reach every partition.
_COMMIT_S: Final = 5.0


@dataclass
class Markers:
    """The visible markers; each read resumes where the last one ended.

    Attributes:
        visible: by UUID.
        bounds: of the marker partitions, at the last read.
    """

    visible: dict[str, Marker] = field(default_factory=dict)
    bounds: Bounds = field(default_factory=lambda: Bounds({}, {}, {}))
    _positions: dict[int, int] = field(default_factory=dict)

    def read_new(self, cluster: Cluster) -> None:
        """Read the markers that became visible since."""
        self.bounds = cluster.marker_bounds()
        for partition, start in self.bounds.starts.items():
            position = max(start, self._positions.get(partition, 0))
            if position < self.bounds.stable[partition]:
                found = cluster.markers(partition, position, self.bounds.stable[partition])
                self.visible.update({marker.uuid: marker for _, marker in found})
                self._positions[partition] = max(self.bounds.stable[partition], *(o + 1 for o, _ in found), position)

    def forget_before(self, kept: Collection[BatchId]) -> None:
        """Drop markers of batches older than the kept ones of their query: their decisions were truncated."""
        oldest: dict[str, int] = {}
        for query_id, batch in kept:
            oldest[query_id] = min(batch, oldest.get(query_id, batch))
        self.visible = {u: m for u, m in self.visible.items() if m.batch_id >= oldest.get(m.query_id, 0)}


def wait_for_commits(cluster: Cluster, decided: Mapping[str, Decided], last: BatchId | None) -> None:
    """Wait while coordinators commit transactions of the last batch, at most 5 s."""
    ids = {one.handle.transactional_id: one.handle for one in decided.values() if one.id == last}

    def is_committing() -> bool:
        found = cluster.transactions.describe(list(ids))
        return any(is_at(found[tid], handle) and found[tid].state == "PrepareCommit" for tid, handle in ids.items())

    try:
        Retrying(retry=retry_if_result(bool), stop=stop_after_delay(_COMMIT_S), wait=wait_fixed(0.05))(is_committing)
    except RetryError:
        return  # check_missing reports it as not committed


def missing(cluster: Cluster, markers: Markers, decided: Mapping[str, Decided]) -> dict[str, Description]:
    """Decided transactions without a visible marker, by UUID, with their coordinator's description."""
    absent = [one for uuid, one in decided.items() if uuid not in markers.visible]
    if not absent:
        return {}
    found = cluster.transactions.describe([one.handle.transactional_id for one in absent])
    # A transaction that was committed before it was described has its marker by now.
    markers.read_new(cluster)
    return {
        one.handle.uuid: found[one.handle.transactional_id] for one in absent if one.handle.uuid not in markers.visible
    }
