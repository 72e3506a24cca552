"""The outcome of each of a query's checkpoints, kept beside Spark's checkpoint; ``twopc history`` and others read it."""

from __future__ import annotations

from twopc.integration.history.log import CheckpointLog
from twopc.integration.history.metrics import PrometheusMetrics

__all__ = ["CheckpointLog", "PrometheusMetrics"]
