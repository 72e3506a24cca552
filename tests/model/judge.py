"""Watches the cluster during a history, so that a violation is reported close to its cause."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.model.network import NETWORK
from tests.model.query import LEDGER, OUTPUT, ModelViolation
from twopc.codec import decode
from twopc.records import Decision, Repair

if TYPE_CHECKING:
    from tests.model.broker import Cluster, Entry, Transaction
    from tests.model.query import Checkpointed
    from tests.model.simulation import Process

ROGUE = "rogue"


class Judge:
    """Checks that only decided transactions commit, no row is visible twice, and a start to be refused fences nobody."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._decided: set[tuple[str, int]] = set()
        self._seen: Counter[int] = Counter()
        #: The driver that last asked for the driver's transactional id, and so may have fenced every other.
        self.last_to_fence = ""
        cluster.on_commit = self._on_commit
        cluster.on_visible = self._on_visible

    def _on_commit(self, known: Transaction) -> None:
        if known.transactional_id.endswith(".driver"):
            self._learn(known)
        elif (known.transactional_id, known.epoch) not in self._decided:
            raise ModelViolation(f"{known.transactional_id} is committed without a decision")

    def _learn(self, known: Transaction) -> None:
        """Learn what the driver's transaction decides. It holds once the coordinator accepts it, before it can be read."""
        log = self._cluster.logs[LEDGER, 0]
        if known.producer_id not in log.open:
            return
        entries = log.entries[log.open[known.producer_id] :]
        values = [(e.offset, e.value) for e in entries if e.producer_id == known.producer_id and e.value is not None]
        for found in decode(values):
            if isinstance(found.record, (Decision, Repair)):
                handles = [handle for task in found.record.tasks for handle in task.handles.values()]
                self._decided |= {(handle["transactional_id"], handle["producer_epoch"]) for handle in handles}

    def _on_visible(self, where: tuple[str, int], entry: Entry) -> None:
        if where[0] != OUTPUT:
            return
        row = int(entry.value or b"")
        self._seen[row] += 1
        if self._seen[row] > 1:
            raise ModelViolation(f"row {row} is visible twice")

    def on_request(self, kind: str, process: Process) -> None:
        if kind == "init" and "/" not in process.name:  # a worker's name is <driver>/<worker>
            self.last_to_fence = process.name
        # It reads before it fences. A cut-off leader may hide records from it; then it is refused only after it has fenced.
        if kind == "init" and process.name.startswith(ROGUE) and not NETWORK.stale:
            raise ModelViolation("a start that must be refused fenced the healthy driver")

    def require_all_visible_once(self, kept: Checkpointed, partitions: int) -> None:
        """Check the end of a history against the checkpoint's plan."""
        end = kept.offsets.get(max(kept.offsets, default=0), 0)
        seen: Counter[int] = Counter()
        for number in range(partitions):
            log = self._cluster.logs[OUTPUT, number]
            if log.stable != log.end:
                raise ModelViolation(
                    f"output {number} is readable up to {log.stable} of {log.end}: a transaction is open"
                )
            seen.update(int(entry.value or b"") for entry in self._cluster.fetch((OUTPUT, number), 0)[0])
        if seen != Counter(range(end)):
            lost, extra = sorted(set(range(end)) - set(seen)), dict(seen - Counter(range(end)))
            raise ModelViolation(f"lost {lost}, too many {extra}, of {end} rows")
        left = [known.transactional_id for known in self._cluster.ongoing()]
        if left:
            raise ModelViolation(f"transactions are left open: {left}")
