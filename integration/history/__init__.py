"""Record each checkpoint's outcome next to Spark's checkpoint, for ``twopc history`` and other readers."""

from __future__ import annotations

from twopc.integration.history.log import CheckpointLog
from twopc.integration.history.metrics import PrometheusMetrics

__all__ = ["CheckpointLog", "PrometheusMetrics"]
