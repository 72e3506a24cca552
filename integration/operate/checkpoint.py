"""Read the checkpoint of a running or dead query, without Spark. Reject a directory that is not a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twopc.binding import Binding
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.local_paths import local_path
from twopc.integration.spark.checkpoint import query_id
from twopc.log_view import fold
from twopc.registers import RegisterLog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from twopc.log_view import LogView


@dataclass(frozen=True, kw_only=True)
class CheckpointState:
    """The facts in a checkpoint.

    Attributes:
        planned: the last batch that Spark has planned (``offsets/N``); None if Spark has planned no batch.
        finished: the last batch that Spark has finished (``commits/N``).
        log: the decision log that the checkpoint is bound to; None if no batch has been decided yet.
        sinks: the sinks that the checkpoint is bound to, each with the facts that must not change.
        registers: the decisions, if the checkpoint contains them.
    """

    location: str
    query_id: str
    planned: int | None
    finished: int | None
    log: str | None
    sinks: Mapping[str, Mapping[str, str]]
    registers: LogView | None = None

    def facts(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        return {
            "location": self.location,
            "query_id": self.query_id,
            "last_planned": self.planned,
            "last_finished": self.finished,
            "decision_log": self.log,
            "sinks": {name: dict(facts) for name, facts in self.sinks.items()},
            "last_decided": None if self.registers is None else self.registers.highest_batch,
        }


def read_checkpoint(path: Path) -> CheckpointState:
    """Read the checkpoint, and change nothing in it.

    Raises:
        ConfigurationError: the directory does not exist, or its checkpoint is missing or torn.
        DecisionLogDamagedError, RefusedStartError: one of this toolkit's files is torn, altered, or from a newer version.
    """
    path = local_path(path)
    if not path.is_dir():
        raise ConfigurationError(
            f"directory {path} does not exist. Check the checkpoint's path, or pass a sink name instead"
        )
    files = LocalFiles(path)
    try:
        if files.read("metadata") is None:
            raise ConfigurationError(f"{path} is not a checkpoint of a streaming query: the file 'metadata' is missing")
        binding = Binding(LocalFiles(path / "twopc"))
        log = RegisterLog(LocalFiles(path / "twopc"))
        return CheckpointState(
            location=str(path),
            query_id=query_id(files),
            planned=max(numbers(files, "offsets"), default=None),
            finished=max(numbers(files, "commits"), default=None),
            log=binding.log,
            sinks=binding.sinks,
            registers=fold(log.inspect()) if binding.log == log.name else None,
        )
    except OSError as error:
        raise ConfigurationError(
            f"the checkpoint {path} cannot be read: {error}. Check the path and its permissions"
        ) from error


def numbers(files: LocalFiles, directory: str) -> set[int]:
    """List the batches with a file in ``directory``, which is part of the checkpoint."""
    return {int(name) for name in files.names(directory) if name.isdigit()}
