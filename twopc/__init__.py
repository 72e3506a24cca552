"""Exactly-once sinks for PySpark, with ``exactly_once`` and the interfaces for implementing other sinks and engines.

Each name is imported on first use. A Python worker therefore loads only the modules that its task needs, and a sink's
client library is required only where that sink is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from twopc.attempt import Attempt, Claim, Evidence, Handle, Owner, TaskAttempt
    from twopc.batch import Batch
    from twopc.checkpoint_config import CheckpointConfig
    from twopc.committer import SinkCommitter
    from twopc.control_committer import ControlCommitter
    from twopc.coordinator import Coordinator
    from twopc.crash_points import crash_point
    from twopc.decision_log import DecisionLog
    from twopc.engine import Engine, Work
    from twopc.errors import (
        BadRecordError,
        CheckpointExpiredError,
        CommitBlockedError,
        ConfigurationError,
        DecisionInDoubtError,
        DecisionLogDamagedError,
        FatalError,
        FencedError,
        InDoubtError,
        RefusedStartError,
        RestoredError,
        RetriableError,
        SchemaError,
        TwoPhaseCommitError,
        UnavailableError,
    )
    from twopc.events import Phase, Triggered
    from twopc.fenced_committer import FencedCommitter, Prepared, transaction_name
    from twopc.files import Files, LocalFiles, MemoryFiles
    from twopc.integration.spark import DriverUpTo as DriverUpTo
    from twopc.integration.spark import ExactlyOnce as ExactlyOnce
    from twopc.integration.spark import InterceptedBatch as InterceptedBatch
    from twopc.integration.spark import Interceptor as Interceptor
    from twopc.integration.spark import exactly_once as exactly_once
    from twopc.integration.spark import exit_status as exit_status
    from twopc.integration.spark import intercepted as intercepted
    from twopc.listeners import Listener
    from twopc.override import Abandon, AddSink, AdoptQuery, EndQuery, Overrides, ResumeAt
    from twopc.progress import Acknowledgement, Cause, Checkpoint, StateSize
    from twopc.records import TaskReport
    from twopc.settings import Settings
    from twopc.sink import TwoPhaseCommitSink
    from twopc.sinks.delta import DeltaSink as DeltaSink
    from twopc.sinks.hbase import HBaseSink as HBaseSink
    from twopc.sinks.iceberg import IcebergSink as IcebergSink
    from twopc.sinks.kafka import KafkaSink as KafkaSink
    from twopc.sinks.postgres import PostgresSink as PostgresSink
    from twopc.sinks.redis import RedisSink as RedisSink
    from twopc.writer import SinkWriter

__version__ = "0.2.0"

__all__ = [
    "Abandon",
    "Acknowledgement",
    "AddSink",
    "AdoptQuery",
    "Attempt",
    "BadRecordError",
    "Batch",
    "Cause",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointExpiredError",
    "Claim",
    "CommitBlockedError",
    "ConfigurationError",
    "ControlCommitter",
    "Coordinator",
    "DecisionInDoubtError",
    "DecisionLog",
    "DecisionLogDamagedError",
    "EndQuery",
    "Engine",
    "Evidence",
    "FatalError",
    "FencedCommitter",
    "FencedError",
    "Files",
    "Handle",
    "InDoubtError",
    "Listener",
    "LocalFiles",
    "MemoryFiles",
    "Overrides",
    "Owner",
    "Phase",
    "Prepared",
    "RefusedStartError",
    "RestoredError",
    "ResumeAt",
    "RetriableError",
    "SchemaError",
    "Settings",
    "SinkCommitter",
    "SinkWriter",
    "StateSize",
    "TaskAttempt",
    "TaskReport",
    "Triggered",
    "TwoPhaseCommitError",
    "TwoPhaseCommitSink",
    "UnavailableError",
    "Work",
    "__version__",
    "crash_point",
    "transaction_name",
]

_MODULES: Final = {
    "attempt": ("Attempt", "Claim", "Evidence", "Handle", "Owner", "TaskAttempt"),
    "batch": ("Batch",),
    "checkpoint_config": ("CheckpointConfig",),
    "committer": ("SinkCommitter",),
    "control_committer": ("ControlCommitter",),
    "coordinator": ("Coordinator",),
    "crash_points": ("crash_point",),
    "decision_log": ("DecisionLog",),
    "engine": ("Engine", "Work"),
    "errors": tuple(name for name in __all__ if name.endswith("Error")),
    "events": ("Phase", "Triggered"),
    "fenced_committer": ("FencedCommitter", "Prepared", "transaction_name"),
    "files": ("Files", "LocalFiles", "MemoryFiles"),
    "listeners": ("Listener",),
    "override": ("Abandon", "AddSink", "AdoptQuery", "EndQuery", "Overrides", "ResumeAt"),
    "progress": ("Acknowledgement", "Cause", "Checkpoint", "StateSize"),
    "records": ("TaskReport",),
    "settings": ("Settings",),
    "sink": ("TwoPhaseCommitSink",),
    "writer": ("SinkWriter",),
}
#: These names are not in ``__all__``. Otherwise, ``from twopc import *`` would need every extra.
_FACE: Final = {
    "integration.spark": (
        "DriverUpTo",
        "ExactlyOnce",
        "InterceptedBatch",
        "Interceptor",
        "exactly_once",
        "exit_status",
        "intercepted",
    ),
    "sinks.delta": ("DeltaSink",),
    "sinks.hbase": ("HBaseSink",),
    "sinks.iceberg": ("IcebergSink",),
    "sinks.kafka": ("KafkaSink",),
    "sinks.postgres": ("PostgresSink",),
    "sinks.redis": ("RedisSink",),
}
_HOMES: Final = {name: f"twopc.{module}" for module, names in {**_MODULES, **_FACE}.items() for name in names}

if not TYPE_CHECKING:  # so that a type checker still reports names that do not exist

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return [*_HOMES, "__version__"]
