"""Send alerts without Prometheus: with a listener in the driver, or from the history with ``twopc alerts``."""

from __future__ import annotations

from twopc.integration.alerts.channels import Webhook, to_log
from twopc.integration.alerts.episodes import Alert
from twopc.integration.alerts.listener import Alerts
from twopc.integration.alerts.rules import ConsecutiveFailures, FailedCheckpoints, NoCheckpoint

__all__ = ["Alert", "Alerts", "ConsecutiveFailures", "FailedCheckpoints", "NoCheckpoint", "Webhook", "to_log"]
