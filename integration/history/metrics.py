"""Export Prometheus metrics from the driver: ``exactly_once(…, listeners=[PrometheusMetrics("orders", port=9108)])``."""

from __future__ import annotations

import time
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import missing_extra
from twopc.integration.history.families import families_of
from twopc.integration.history.metrics_server import serve
from twopc.listeners import Listener

if TYPE_CHECKING:
    from twopc.events import Phase, Triggered
    from twopc.progress import Checkpoint

#: The phases of a checkpoint in which its transactions are open.
_OPEN: Final = frozenset({"prepare", "confirm", "decide", "commit"})
_IN_DOUBT: Final = frozenset({"InDoubtError", "DecisionInDoubtError", "CommitBlockedError"})


class PrometheusMetrics(Listener):
    """Counts checkpoints, and measures how long they take. Ages are computed when Prometheus requests them.

    Several queries may use the same registry and the same port. An object that has the same name as an earlier object continues
    the earlier object's metrics, for example after the query was restarted in the same process.

    Args:
        name: the value of the label ``query`` in every metric. Each query needs a different name.
        port: the port on which to serve the metrics, from the first checkpoint until the process ends; None: the caller serves
            the registry.
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
        self._has_failed = False
        self._name = name
        self._families = families = families_of(prometheus, registry)
        families.begin(name, self)
        # To compute a rate, Prometheus needs a zero before the first event. But a new process does not know whether its
        # predecessor stopped in doubt. So ``in_doubt`` has no sample at first, and the alert rule still finds the predecessor's
        # sample.
        for family in (families.late, families.rows, families.bytes, families.orphans, families.took):
            family.labels(name)
        for outcome in ("completed", "declined", "expired", "failed"):
            families.checkpoints.labels(name, outcome)
        for reason in ("declined", "expired", "failed"):
            families.attempts.labels(name, reason)
        # Do not open the port here: under Spark Connect, the client makes this object, but a copy on the server serves
        # the metrics.
        self._serve = None if port is None else partial(serve, prometheus, port, address, registry)

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
        self._families.begin(self._name, self)
        if self._serve is not None:
            self._serve()

    def entered(self, phase: Phase) -> None:
        """See :class:`Listener`."""
        self._phase = phase

    def ended(self, checkpoint: Checkpoint) -> None:
        """See :class:`Listener`."""
        self._triggered_at = self._phase = None
        families, name, cause = self._families, self._name, checkpoint.cause
        self._has_failed = cause is not None
        families.checkpoints.labels(name, checkpoint.outcome).inc()
        families.took.labels(name).observe(checkpoint.took_ms / 1000)
        for phase, ms in checkpoint.phases.items():
            families.phases.labels(name, phase).observe(ms / 1000)
        for failed in checkpoint.failed_attempts:
            families.attempts.labels(name, failed.reason).inc()
        families.orphans.labels(name).inc(checkpoint.orphans_ended)
        if cause is not None:
            families.late.labels(name).inc(cause.late)
            if cause.error in _IN_DOUBT:
                families.in_doubt.labels(name).set(1)
            return  # another error says nothing about a batch that is in doubt
        families.in_doubt.labels(name).set(0)
        families.rows.labels(name).inc(checkpoint.rows)
        families.bytes.labels(name).inc(checkpoint.size_bytes)
        families.last_batch.labels(name).set(checkpoint.batch_id)
        families.last_at.labels(name).set((checkpoint.triggered_ms + checkpoint.took_ms) / 1000)

    def close(self) -> None:
        """See :class:`Listener`. After a failure, the metrics of the query's state stay, because someone still has to act."""
        if not self._has_failed:
            self._families.end(self._name, self)

    def is_busy(self) -> bool:
        """See :class:`~twopc.integration.history.families.Owner`."""
        return self._triggered_at is not None

    def age(self) -> float:
        """See :class:`~twopc.integration.history.families.Owner`."""
        began = self._triggered_at
        return 0.0 if began is None else time.monotonic() - began

    def ratio(self) -> float:
        """See :class:`~twopc.integration.history.families.Owner`."""
        phase = self._phase
        if phase is None or phase.name not in _OPEN or phase.attempt_began is None or not phase.transactions_live_ms:
            return 0.0
        return (time.monotonic() - phase.attempt_began) * 1000 / phase.transactions_live_ms
