"""Export Prometheus metrics from the driver: ``exactly_once(…, listeners=[PrometheusMetrics("orders", port=9108)])``."""

from __future__ import annotations

import time
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import missing_extra
from twopc.listeners import Listener

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.events import Phase, Triggered
    from twopc.progress import Checkpoint

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
#: The phases of a checkpoint in which its transactions are open.
_OPEN: Final = frozenset({"prepare", "confirm", "decide", "commit"})
_IN_DOUBT: Final = frozenset({"InDoubtError", "DecisionInDoubtError", "CommitBlockedError"})


class PrometheusMetrics(Listener):
    """Counts checkpoints, and measures how long they take. Ages are computed when Prometheus requests them.

    Args:
        name: the value of the label ``query`` in every metric.
        port: the port on which to serve the metrics, from the first checkpoint on; None: the caller serves the registry.
        address: the server's address.
        registry: where to register the metrics; None: the default registry of prometheus_client.

    Raises:
        ModuleNotFoundError: the ``metrics`` extra is not installed.
    """

    def __init__(self, name: str, *, port: int | None = None, address: str = "127.0.0.1", registry: Any = None) -> None:
        try:
            prometheus: Any = import_module("prometheus_client")  # an extra
        except ModuleNotFoundError as error:
            raise missing_extra("PrometheusMetrics", "metrics", error) from error
        self._arguments = {"name": name, "port": port, "address": address, "registry": registry}
        registry = prometheus.REGISTRY if registry is None else registry
        self._triggered_at: float | None = None
        self._phase: Phase | None = None
        self._name = name

        def counter(what: str, says: str, *labels: str) -> Any:
            return prometheus.Counter(f"twopc_{what}", says, (*_LABEL, *labels), registry=registry)

        def gauge(what: str, says: str) -> Any:
            return prometheus.Gauge(f"twopc_{what}", says, _LABEL, registry=registry).labels(name)

        self._ended = counter("checkpoints", "Checkpoints that have ended, by outcome.", "outcome")
        self._attempts = counter("failed_attempts", "Attempts that failed and were retried, by reason.", "reason")
        self._late = counter("late_acknowledgements", "Votes that arrived after their checkpoint had expired.").labels(
            name
        )
        self._rows = counter("rows", "Rows in completed checkpoints.").labels(name)
        self._bytes = counter("bytes", "Size of the rows in completed checkpoints, in bytes of Arrow data.").labels(
            name
        )
        self._orphans = counter("orphans_ended", "Open, undecided transactions that a sweep has aborted.").labels(name)
        self._took = prometheus.Histogram(
            "twopc_checkpoint_seconds",
            "Time from a checkpoint's trigger to its end.",
            _LABEL,
            registry=registry,
            buckets=_BUCKETS,
        ).labels(name)
        self._phases = prometheus.Histogram(
            "twopc_phase_seconds", "Time spent in each phase.", (*_LABEL, "phase"), registry=registry, buckets=_BUCKETS
        )
        self._last_batch = gauge("last_completed_batch", "The last completed checkpoint's id.")
        self._last_at = gauge(
            "last_completed_timestamp_seconds", "When the last checkpoint was completed, in seconds since 1970 UTC."
        )
        # A new process does not know whether its predecessor stopped in doubt. So it has no sample at first, and the alert
        # rule still finds the predecessor's sample.
        self._in_doubt = partial(
            prometheus.Gauge(
                "twopc_in_doubt",
                "1 from an error that leaves a decided checkpoint unproven until a checkpoint is completed; then 0.",
                _LABEL,
                registry=registry,
            ).labels,
            name,
        )
        gauge(
            "checkpoint_age_seconds", "Age of the checkpoint in progress; 0 if no checkpoint is in progress."
        ).set_function(self._age)
        gauge(
            "transaction_age_ratio",
            "Age of the oldest open transaction in the current checkpoint, as a share of the transaction's limit.",
        ).set_function(self._ratio)
        for outcome in ("completed", "declined", "expired", "failed"):
            self._ended.labels(name, outcome)  # to compute a rate, Prometheus needs a zero before the first event
        for reason in ("declined", "expired", "failed"):
            self._attempts.labels(name, reason)
        # Do not open the port here: under Spark Connect, the client makes this object, but a copy on the server serves
        # the metrics.
        self._serve = None if port is None else partial(prometheus.start_http_server, port, address, registry)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the arguments."""
        return partial(type(self), **self._arguments), ()

    def triggered(self, checkpoint: Triggered) -> None:
        """See :class:`Listener`.

        Raises:
            OSError: the port cannot be opened. The next checkpoint tries again.
        """
        del checkpoint
        self._triggered_at = time.monotonic()
        if self._serve is not None:
            self._open(self._serve)

    def _open(self, serve: Callable[[], object]) -> None:
        try:
            serve()
        except OSError as error:
            port, address = self._arguments["port"], self._arguments["address"]
            raise OSError(
                f"port {port} on {address} cannot be opened ({error}), so no metrics are served. The query tries again "
                "at every checkpoint. If another query or program uses this port, choose a different port"
            ) from error
        self._serve = None

    def entered(self, phase: Phase) -> None:
        """See :class:`Listener`."""
        self._phase = phase

    def ended(self, checkpoint: Checkpoint) -> None:
        """See :class:`Listener`."""
        self._triggered_at = self._phase = None
        name, cause = self._name, checkpoint.cause
        self._ended.labels(name, checkpoint.outcome).inc()
        self._took.observe(checkpoint.took_ms / 1000)
        for phase, ms in checkpoint.phases.items():
            self._phases.labels(name, phase).observe(ms / 1000)
        for failed in checkpoint.failed_attempts:
            self._attempts.labels(name, failed.reason).inc()
        self._orphans.inc(checkpoint.orphans_ended)
        if cause is not None:
            self._late.inc(cause.late)
            if cause.error in _IN_DOUBT:
                self._in_doubt().set(1)
            return  # another error says nothing about a batch that is in doubt
        self._in_doubt().set(0)
        self._rows.inc(checkpoint.rows)
        self._bytes.inc(checkpoint.size_bytes)
        self._last_batch.set(checkpoint.batch_id)
        self._last_at.set((checkpoint.triggered_ms + checkpoint.took_ms) / 1000)

    def _age(self) -> float:
        began = self._triggered_at
        return 0.0 if began is None else time.monotonic() - began

    def _ratio(self) -> float:
        phase = self._phase
        if phase is None or phase.name not in _OPEN or phase.attempt_began is None or not phase.transactions_live_ms:
            return 0.0
        return (time.monotonic() - phase.attempt_began) * 1000 / phase.transactions_live_ms
