"""Watches the cluster during a history, so that a violation is reported close to its cause."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.model.network import NETWORK
from tests.model.query import LEDGERS, OUTPUT, ModelViolation
from twopc.codec import decode
from twopc.override import Abandon, ResumeAt
from twopc.records import Begin, Decision, Repair

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.model.broker import Cluster, Entry, Transaction
    from tests.model.query import Checkpointed
    from tests.model.simulation import Process

ROGUE = "rogue"

#: A query and one of its batches. Each query numbers its batches from 0.
_Batch = tuple[str, int]


class Judge:
    """Checks that only decided transactions commit, no row is visible twice, and a start that must be refused fences no driver.

    Attributes:
        allowed: the overrides that the user has set so far. An override without a query applies to the first query that
            decides anything in a ledger.
        abandoned: the batches that are recorded as abandoned.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._decided: dict[tuple[str, int], _Batch] = {}  # the batch of each transaction
        self._highest: dict[str, int] = {}
        self._first: dict[str, str] = {}  # by ledger, the first query that has decided anything
        self._last: _Batch | None = None
        self.allowed: set[ResumeAt | Abandon] = set()
        self.abandoned: set[_Batch] = set()
        self._seen: Counter[int] = Counter()
        cluster.on_commit = self._on_commit
        cluster.on_visible = self._on_visible

    def _on_commit(self, known: Transaction) -> None:
        if known.transactional_id.endswith(".driver"):
            self._learn(known)
        elif (known.transactional_id, known.epoch) not in self._decided:
            raise ModelViolation(f"{known.transactional_id} was committed without a decision")

    def _learn(self, known: Transaction) -> None:
        """Learn the decision in the driver's transaction. It holds once the coordinator accepts it, before it can be read."""
        for ledger in LEDGERS:
            log = self._cluster.logs[ledger, 0]
            if known.producer_id in log.open:
                entries = log.entries[log.open[known.producer_id] :]
                mine = [one for one in entries if one.producer_id == known.producer_id]
                self._learn_from(ledger, [(one.offset, one.value) for one in mine if one.value is not None])

    def _learn_from(self, ledger: str, values: list[tuple[int, bytes]]) -> None:
        for _, record in decode(values):
            if isinstance(record, Begin):
                self._first.setdefault(ledger, record.query_id)
                if record.abandons:
                    self._require_allowed(Abandon(record.first_batch - 1, record.query_id))
                    self.abandoned.add((record.query_id, record.first_batch - 1))
            if isinstance(record, Decision):
                self._on_decision(record.query_id, record.batch_id)
            if isinstance(record, (Decision, Repair)):
                handles = [handle for task in record.tasks for handle in task.handles.values()]
                for handle in handles:
                    self._decided[handle["transactional_id"], handle["producer_epoch"]] = (
                        record.query_id,
                        record.batch_id,
                    )

    def _require_allowed(self, override: ResumeAt | Abandon) -> None:
        is_first = override.query_id in self._first.values() or not self._first
        if {override, *([replace(override, query_id=None)] if is_first else [])}.isdisjoint(self.allowed):
            raise ModelViolation(f"the user has not set {override}")

    def _on_decision(self, query_id: str, batch: int) -> None:
        if batch > self._highest.get(query_id, -1) + 1:
            self._require_allowed(ResumeAt(batch, query_id))
        if (query_id, batch) in self.abandoned:
            raise ModelViolation(f"batch {batch} of {query_id} was abandoned, but was then decided again")
        self._highest[query_id] = batch
        self._last = query_id, batch

    def decided_and_open(self) -> list[Transaction]:
        """The transactions of the last decision that are still open."""
        decided, last = self._decided, self._last
        return [
            known
            for known in self._cluster.ongoing()
            if last is not None and decided.get((known.transactional_id, known.epoch)) == last
        ]

    def _on_visible(self, where: tuple[str, int], entry: Entry) -> None:
        if where[0] != OUTPUT:
            return
        row = int(entry.value or b"")
        self._seen[row] += 1
        if self._seen[row] > 1:
            raise ModelViolation(f"row {row} is visible twice")

    def on_request(self, kind: str, process: Process) -> None:
        # The rogue reads before it fences. If a cut-off leader hides records from it, it is refused only after it has
        # fenced.
        if kind == "init" and process.name.startswith(ROGUE) and not NETWORK.stale:
            raise ModelViolation("a start fenced the healthy driver, although the start should have been refused")

    def require_all_visible_once(self, kept: Checkpointed, replaced: Iterable[Checkpointed], partitions: int) -> None:
        """Check the end of a history against the checkpoint's plan: of an abandoned batch, any row may be missing.

        Of a query that another one has replaced, only the decided batches count.
        """
        wanted, optional = Counter[int](), Counter[int]()
        batches = [(kept, batch) for batch in kept.offsets.keys() - kept.skipped]
        for old in replaced:
            decided = range(self._highest.get(old.query_id, -1) + 1)
            batches += [(old, batch) for batch in old.offsets.keys() - old.skipped if batch in decided]
        for of, batch in batches:
            (optional if (of.query_id, batch) in self.abandoned else wanted).update(of.rows_of(batch))
        seen: Counter[int] = Counter()
        for number in range(partitions):
            log = self._cluster.logs[OUTPUT, number]
            if log.stable != log.end:
                raise ModelViolation(
                    f"output {number} is readable only up to {log.stable} of {log.end}, because a transaction is open"
                )
            seen.update(int(entry.value or b"") for entry in self._cluster.fetch((OUTPUT, number), 0)[0])
        lost, extra = sorted(wanted - seen), dict(seen - wanted - optional)
        if lost or extra:
            raise ModelViolation(f"of {wanted.total()} rows, these were lost: {lost}; these are extra: {extra}")
        left = [known.transactional_id for known in self._cluster.ongoing()]
        if left:
            raise ModelViolation(f"transactions are left open: {left}")
