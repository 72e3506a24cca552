"""Read the checkpoint of a running or dead query, without Spark. Reject a directory that is not a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from twopc.binding import Binding
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.local_paths import local_path
from twopc.integration.spark.checkpoint import numbers, query_id
from twopc.integration.spark.former_writers import last_former_batch
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
        former: the last batch that another writer finished; see :func:`last_former_batch`.
    """

    location: str
    query_id: str
    planned: int | None
    finished: int | None
    log: str | None
    sinks: Mapping[str, Mapping[str, str]]
    registers: LogView | None = None
    former: int | None = -1

    @property
    def decided(self) -> int | None:
        """The highest batch of this checkpoint's query in ``registers``; None if there is none."""
        return None if self.registers is None else self.registers.highest_batch_of(self.query_id)

    def facts(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        return {
            "location": self.location,
            "query_id": self.query_id,
            "last_planned": self.planned,
            "last_finished": self.finished,
            "decision_log": self.log,
            "sinks": {name: dict(facts) for name, facts in self.sinks.items()},
            "last_decided": self.decided,
        }


def combined(before: CheckpointState, after: CheckpointState) -> CheckpointState:
    """Combine two readings of a checkpoint, taken before and after the decisions were read.

    Spark plans a batch before the decision, and finishes the batch after the decision. So the finished batches are from the
    first reading, and everything else is from the second reading. As a result, a batch that the query writes in between does
    not cause a false finding.
    """
    return replace(after, finished=before.finished)


def read_checkpoint(path: Path) -> CheckpointState:
    """Read the checkpoint, and change nothing in it.

    Raises:
        ConfigurationError: the directory does not exist, its checkpoint is missing or torn, or the record of a cut-over or
            a restore is torn.
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
        own = LocalFiles(path / "twopc")
        binding, log, of = Binding(own), RegisterLog(own), query_id(files)
        return CheckpointState(
            location=str(path),
            query_id=of,
            planned=max(numbers(files, "offsets"), default=None),
            finished=max(numbers(files, "commits"), default=None),
            log=binding.log,
            sinks=binding.sinks,
            registers=fold(log.inspect()) if binding.log == log.name else None,
            former=last_former_batch(own, of),
        )
    except OSError as error:
        raise ConfigurationError(
            f"the checkpoint {path} cannot be read: {error}. Check the path and its permissions"
        ) from error
