"""The protocol of two-phase commit: its contract for sinks and engines, and its driver. Knows neither Kafka nor Spark.

This module exports what a sink's or an engine's author needs. Each name is imported when it is first used, so that a Python
worker loads only what its task needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from twopc.attempt import Attempt, Claim, Evidence, Handle, TaskAttempt
    from twopc.batch import Batch, Overrides
    from twopc.committer import SinkCommitter
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
        RetriableError,
        SchemaError,
        TwoPhaseCommitError,
    )
    from twopc.files import Files, LocalFiles, MemoryFiles
    from twopc.pending import Listener, Pending
    from twopc.progress import Acknowledgement, Cause, Checkpoint, StateSize
    from twopc.records import TaskReport
    from twopc.settings import Settings
    from twopc.sink import TwoPhaseCommitSink
    from twopc.writer import SinkWriter

__version__ = "0.2.0"

__all__ = [
    "Acknowledgement",
    "Attempt",
    "BadRecordError",
    "Batch",
    "Cause",
    "Checkpoint",
    "CheckpointExpiredError",
    "Claim",
    "CommitBlockedError",
    "ConfigurationError",
    "Coordinator",
    "DecisionInDoubtError",
    "DecisionLog",
    "DecisionLogDamagedError",
    "Engine",
    "Evidence",
    "FatalError",
    "FencedError",
    "Files",
    "Handle",
    "InDoubtError",
    "Listener",
    "LocalFiles",
    "MemoryFiles",
    "Overrides",
    "Pending",
    "RefusedStartError",
    "RetriableError",
    "SchemaError",
    "Settings",
    "SinkCommitter",
    "SinkWriter",
    "StateSize",
    "TaskAttempt",
    "TaskReport",
    "TwoPhaseCommitError",
    "TwoPhaseCommitSink",
    "Work",
    "__version__",
    "crash_point",
]

_MODULES: Final = {
    "attempt": ("Attempt", "Claim", "Evidence", "Handle", "TaskAttempt"),
    "batch": ("Batch", "Overrides"),
    "committer": ("SinkCommitter",),
    "coordinator": ("Coordinator",),
    "crash_points": ("crash_point",),
    "decision_log": ("DecisionLog",),
    "engine": ("Engine", "Work"),
    "errors": tuple(name for name in __all__ if name.endswith("Error")),
    "files": ("Files", "LocalFiles", "MemoryFiles"),
    "pending": ("Listener", "Pending"),
    "progress": ("Acknowledgement", "Cause", "Checkpoint", "StateSize"),
    "records": ("TaskReport",),
    "settings": ("Settings",),
    "sink": ("TwoPhaseCommitSink",),
    "writer": ("SinkWriter",),
}
_HOMES: Final = {name: f"twopc.{module}" for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # so that a type checker still reports names that do not exist

    def __getattr__(name: str) -> Any:
        """Import an exported name on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        """The public names."""
        return __all__
