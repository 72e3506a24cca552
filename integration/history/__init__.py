"""What became of a query's checkpoints: written beside Spark's checkpoint, read by ``twopc history`` and its neighbours."""

from __future__ import annotations

from twopc.integration.history.log import CheckpointLog
from twopc.integration.history.metrics import PrometheusMetrics

__all__ = ["CheckpointLog", "PrometheusMetrics"]
