"""Watches the cluster during a history, so that a violation is reported close to its cause."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.model.network import NETWORK
from tests.model.query import LEDGER, OUTPUT, ModelViolation
from twopc.codec import decode
from twopc.records import Begin, Decision, Repair

if TYPE_CHECKING:
    from tests.model.broker import Cluster, Entry, Transaction
    from tests.model.query import Checkpointed
    from tests.model.simulation import Process

ROGUE = "rogue"


class Judge:
    """Checks that only decided transactions commit, no row is visible twice, and a start that must be refused fences no driver.

    Attributes:
        allowed: what the user has allowed so far: the name of the setting, and the batch.
        abandoned: the batches that are recorded as abandoned.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._decided: dict[tuple[str, int], int] = {}  # the batch of each transaction
        self._highest = -1
        self.allowed: set[tuple[str, int | None]] = set()
        self.abandoned: set[int] = set()
        self._seen: Counter[int] = Counter()
        cluster.on_commit = self._on_commit
        cluster.on_visible = self._on_visible

    def _on_commit(self, known: Transaction) -> None:
        if known.transactional_id.endswith(".driver"):
            self._learn(known)
        elif (known.transactional_id, known.epoch) not in self._decided:
            raise ModelViolation(f"{known.transactional_id} is committed without a decision")

    def _learn(self, known: Transaction) -> None:
        """Learn the decision in the driver's transaction. It holds once the coordinator accepts it, before it can be read."""
        log = self._cluster.logs[LEDGER, 0]
        if known.producer_id not in log.open:
            return
        entries = log.entries[log.open[known.producer_id] :]
        values = [(e.offset, e.value) for e in entries if e.producer_id == known.producer_id and e.value is not None]
        for _, record in decode(values):
            if isinstance(record, Begin) and record.abandons:
                self._allow("abandon_batch", record.first_batch - 1)
                self.abandoned.add(record.first_batch - 1)
            if isinstance(record, Decision):
                self._on_decision(record.batch_id)
            if isinstance(record, (Decision, Repair)):
                handles = [handle for task in record.tasks for handle in task.handles.values()]
                for handle in handles:
                    self._decided[handle["transactional_id"], handle["producer_epoch"]] = record.batch_id

    def _allow(self, setting: str, batch: int) -> None:
        if (setting, batch) not in self.allowed:
            raise ModelViolation(f"the user has not set {setting}={batch}")

    def _on_decision(self, batch: int) -> None:
        if batch > self._highest + 1:
            self._allow("resume_at_batch", batch)
        if batch in self.abandoned:
            raise ModelViolation(f"batch {batch} was given up, and is decided again")
        self._highest = batch

    def decided_and_open(self) -> list[Transaction]:
        """The transactions of the last decision that are still open."""
        decided, last = self._decided, self._highest
        return [
            known for known in self._cluster.ongoing() if decided.get((known.transactional_id, known.epoch)) == last
        ]

    def _on_visible(self, where: tuple[str, int], entry: Entry) -> None:
        if where[0] != OUTPUT:
            return
        row = int(entry.value or b"")
        self._seen[row] += 1
        if self._seen[row] > 1:
            raise ModelViolation(f"row {row} is visible twice")

    def on_request(self, kind: str, process: Process) -> None:
        # It reads before it fences. A cut-off leader may hide records from it; then it is refused only after it has fenced.
        if kind == "init" and process.name.startswith(ROGUE) and not NETWORK.stale:
            raise ModelViolation("a start that must be refused fenced the healthy driver")

    def require_all_visible_once(self, kept: Checkpointed, partitions: int) -> None:
        """Check the end of a history against the checkpoint's plan: of an abandoned batch, any row may be missing."""
        wanted, optional = Counter[int](), Counter[int]()
        for batch in kept.offsets.keys() - kept.skipped:
            (optional if batch in self.abandoned else wanted).update(kept.rows_of(batch))
        seen: Counter[int] = Counter()
        for number in range(partitions):
            log = self._cluster.logs[OUTPUT, number]
            if log.stable != log.end:
                raise ModelViolation(
                    f"output {number} is readable up to {log.stable} of {log.end}: a transaction is open"
                )
            seen.update(int(entry.value or b"") for entry in self._cluster.fetch((OUTPUT, number), 0)[0])
        lost, extra = sorted(wanted - seen), dict(seen - wanted - optional)
        if lost or extra:
            raise ModelViolation(f"lost {lost}, too many {extra}, of {wanted.total()} rows")
        left = [known.transactional_id for known in self._cluster.ongoing()]
        if left:
            raise ModelViolation(f"transactions are left open: {left}")
