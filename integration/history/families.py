"""Define the metrics in a Prometheus registry. All queries of a process share them, and each query has its own label."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

logger = logging.getLogger(__name__)

_LABEL: Final = ("query",)
_BUCKETS: Final = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    float("inf"),
)


class Owner(Protocol):
    """Shows the state of a query: it watches one run."""

    def is_busy(self) -> bool:
        """Return whether a checkpoint is in progress."""

    def age(self) -> float:
        """Return the age of the checkpoint in progress, in seconds; 0 if there is none."""

    def ratio(self) -> float:
        """Return the age of the oldest open transaction, as a share of the transaction's limit."""


class Families:
    """The metrics of one registry. A registry rejects a second metric of the same name.

    A query's totals stay until the process ends, because Prometheus may not have scraped the last ones yet. The state of a
    query has an owner: the object that watches its newest run.

    Args:
        prometheus: the module ``prometheus_client``.
        registry: the registry.
    """

    def __init__(self, prometheus: Any, registry: Any) -> None:
        def counter(what: str, says: str, *labels: str) -> Any:
            return kept(prometheus.Counter(f"twopc_{what}", says, (*_LABEL, *labels), registry=registry))

        def histogram(what: str, says: str, *labels: str) -> Any:
            name = f"twopc_{what}"
            return kept(prometheus.Histogram(name, says, (*_LABEL, *labels), registry=registry, buckets=_BUCKETS))

        def gauge(what: str, says: str) -> Any:
            return kept(prometheus.Gauge(f"twopc_{what}", says, _LABEL, registry=registry))

        def kept(metric: Any) -> Any:
            self._all.append(metric)
            return metric

        self._all: list[Any] = []

        self.checkpoints = counter("checkpoints", "Checkpoints that have ended, by outcome.", "outcome")
        self.attempts = counter("failed_attempts", "Attempts that failed and were retried, by reason.", "reason")
        self.late = counter("late_acknowledgements", "Votes that arrived after their checkpoint had expired.")
        self.rows = counter("rows", "Rows in completed checkpoints.")
        self.bytes = counter("bytes", "Size of the rows in completed checkpoints, in bytes of Arrow data.")
        self.orphans = counter("orphans_ended", "Open, undecided transactions that a sweep has aborted.")
        self.took = histogram("checkpoint_seconds", "Time from a checkpoint's trigger to its end.")
        self.phases = histogram("phase_seconds", "Time spent in each phase.", "phase")
        self.last_batch = gauge("last_completed_batch", "The last completed checkpoint's id.")
        self.last_at = gauge(
            "last_completed_timestamp_seconds", "When the last checkpoint was completed, in seconds since 1970 UTC."
        )
        self.in_doubt = gauge(
            "in_doubt",
            "1 after an error has left a decided checkpoint unproven; 0 again when a checkpoint is completed.",
        )
        self._age = gauge(
            "checkpoint_age_seconds", "Age of the checkpoint in progress; 0 if no checkpoint is in progress."
        )
        self._ratio = gauge(
            "transaction_age_ratio",
            "Age of the oldest open transaction in the current checkpoint, as a share of the transaction's limit.",
        )
        self._owners: dict[str, Owner] = {}
        self._mixed: set[str] = set()
        self._changing = threading.Lock()

    def register(self, registry: Any) -> None:
        """Register again each metric that the user has unregistered, for example between two tests."""
        for metric in self._all:
            with contextlib.suppress(ValueError):  # the metric is registered
                registry.register(metric)

    def begin(self, query: str, owner: Owner) -> None:
        """Let ``owner`` show the state of a query, instead of the object that has shown it so far.

        While another object's checkpoint is in progress, an object without a checkpoint does not take over.
        """
        with self._changing:
            present = self._owners.get(query)
            if present is owner:
                return
            if present is not None and present.is_busy():
                if not owner.is_busy():
                    return
                self._warn(query)
            self._owners[query] = owner
            self._age.labels(query).set_function(owner.age)
            self._ratio.labels(query).set_function(owner.ratio)

    def _warn(self, query: str) -> None:
        if query not in self._mixed:
            self._mixed.add(query)
            logger.warning(
                "two checkpoints are in progress at the same time under the name %r of PrometheusMetrics, so two queries of "
                "this process share the name. No row is at risk. But their metrics are mixed, and twopc_in_doubt may become "
                "0 even though a batch is still in doubt. Use a different PrometheusMetrics name for each query. This process "
                "logs this warning only once",
                query,
            )

    def end(self, query: str, owner: Owner) -> None:
        """Remove the state of a query that has ended, unless another object shows it."""
        with self._changing:
            if self._owners.get(query) is owner:
                del self._owners[query]
                for gauge in (self.last_batch, self.last_at, self.in_doubt, self._age, self._ratio):
                    gauge.remove(query)


_known: Final[WeakKeyDictionary[Any, Families]] = WeakKeyDictionary()
_lock: Final = threading.Lock()


def families_of(prometheus: Any, registry: Any) -> Families:
    """Return the metrics of a registry. Register them if no query of this process uses the registry yet."""
    with _lock:
        found = _known.get(registry)
        if found is None:
            found = _known[registry] = Families(prometheus, registry)
        else:
            found.register(registry)
        return found
