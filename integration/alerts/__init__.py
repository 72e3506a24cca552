"""Alerts without Prometheus: in the driver, as a listener, or from outside, over the history (``twopc alerts``)."""

from __future__ import annotations

from integration.alerts.channels import Webhook, to_log
from integration.alerts.episodes import Alert
from integration.alerts.listener import Alerts
from integration.alerts.rules import ConsecutiveFailures, FailedCheckpoints, NoCheckpoint

__all__ = ["Alert", "Alerts", "ConsecutiveFailures", "FailedCheckpoints", "NoCheckpoint", "Webhook", "to_log"]
