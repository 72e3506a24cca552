"""A query's checkpoint settings.

Settings that also exist in Flink have the same names as in Flink's ``CheckpointConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from urllib.parse import urlsplit

from twopc.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """A query's checkpoint settings. Each batch has one checkpoint.

    Attributes:
        timeout_ms: a checkpoint that is not prepared within this time is canceled, and none of its rows become visible.
            None: the only limit is the lifetime of the sinks' transactions, which always applies.
        tolerable_failures: how many checkpoints in a row may fail before the query stops. A failure is tolerated only if it
            comes before the decision and has a transient cause; the batch is then written again. The default is 0, as in Flink.
        min_pause_ms: the minimum time from the end of one checkpoint to the trigger of the next. Spark plans the next
            batch before this pause, so the rows of that batch wait.
        max_attempts: how many times the tasks may write the batch in one checkpoint. After an error that cannot be transient,
            the batch is not written again in this checkpoint.
        max_writers: the maximum number of tasks that write a batch. If the batch has several DataFrames, the maximum
            applies to each of them. Each task has its own transaction and writes one or more partitions of the plan.
            A sorted DataFrame for a Redis or HBase sink has one task for each partition, even if that exceeds the maximum;
            the driver then logs a warning. None: twice the number of tasks that the cluster can run at the same time.
        num_retained: how many decisions are retained. None: 10. The toolkit retains at least as many decisions as Spark
            retains batches (``spark.sql.streaming.minBatchesToRetain``, by default 100).
        history: whether to record each checkpoint's outcome next to Spark's checkpoint, for ``twopc history``. None:
            record it only if the checkpoint is in a local directory. If this setting is True on another file system,
            the toolkit writes one object for every hundred checkpoints.
        deterministic_plan: used only under Spark Connect, for a plan that shuffles. True asserts that each part of the query's
            plan yields the same rows whenever Spark runs that part again. The toolkit cannot check this assertion. If the
            assertion is wrong and an executor dies, rows are lost or duplicated.
        spark_ui: the address of Spark's UI, as the server's host sees it, such as ``http://127.0.0.1:4040``. Used only under
            Spark Connect, for a plan that shuffles. The toolkit then checks in the UI whether Spark ran a stage twice.

    Raises:
        ConfigurationError: a value is not valid. The message names the setting.
    """

    timeout_ms: float | None = 600_000
    tolerable_failures: int = 0
    min_pause_ms: float = 0
    max_attempts: int = 3
    max_writers: int | None = None
    num_retained: int | None = None
    history: bool | None = None
    deterministic_plan: bool = False
    spark_ui: str | None = None

    def __post_init__(self) -> None:
        timeout_ms, retained = self.timeout_ms, self.num_retained
        if timeout_ms is not None and not (_is_time(timeout_ms) and timeout_ms > 0):
            raise _invalid("timeout_ms", timeout_ms, "a positive number of milliseconds, or None")
        if not _is_time(self.min_pause_ms):
            raise _invalid("min_pause_ms", self.min_pause_ms, "0 or a positive number of milliseconds")
        if not _is_count(self.tolerable_failures, 0):
            raise _invalid("tolerable_failures", self.tolerable_failures, "0 or a positive number of checkpoints")
        if not _is_count(self.max_attempts, 1):
            raise _invalid("max_attempts", self.max_attempts, "a positive number of attempts")
        if self.max_writers is not None and not _is_count(self.max_writers, 1):
            raise _invalid("max_writers", self.max_writers, "a positive number of tasks, or None")
        if retained is not None and not _is_count(retained, 1):
            raise _invalid("num_retained", retained, "a positive number of decisions, or None")
        if not isinstance(self.history, bool | None):
            raise _invalid("history", self.history, "True, False or None")
        if not isinstance(self.deterministic_plan, bool):
            raise _invalid("deterministic_plan", self.deterministic_plan, "True or False")
        if self.spark_ui is not None and not _is_address(self.spark_ui):
            raise _invalid("spark_ui", self.spark_ui, "an address such as 'http://127.0.0.1:4040', or None")


def _invalid(name: str, value: object, valid: str) -> ConfigurationError:
    return ConfigurationError(f"CheckpointConfig({name}={value!r}): {name} must be {valid}")


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < inf


def _is_address(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value)
        is_server = parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    return (
        is_server and parts.scheme in {"http", "https"} and not (parts.query or parts.fragment or "@" in parts.netloc)
    )


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
