"""Restore a savepoint: create a new checkpoint, from which a new query continues after the savepoint's batch.

The new query has its own id, so the toolkit notices if the old and the new query take turns writing to a sink. The new
query must name the old query (``EndQuery``), and the ledger ends the old query permanently. The old query's binding and
decisions are not restored, because they would bind the new checkpoint to later decisions of the old query.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twopc.counted import counted
from twopc.errors import ConfigurationError
from twopc.integration.local_paths import local_path
from twopc.integration.operate.durable import copy, whole_directory, write
from twopc.integration.operate.manifest import TREE, Savepoint, check, choose, require_intact
from twopc.integration.operate.observe import observe
from twopc.integration.operate.savepoint import missing_batches
from twopc.integration.spark.former_writers import NOTE, Note
from twopc.registers import RegisterLog
from twopc.sealed import seal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from twopc.sinks.kafka import KafkaSink

_METADATA: Final = "metadata"
#: The directory with the old query's decisions and binding, which are not copied.
_OURS: Final = "twopc/"


class Repeated(NamedTuple):
    """The output that is already visible in a sink and will be written again.

    Attributes:
        first: the first batch that was decided after the savepoint; None if no batch was decided.
        last: the last batch that was decided after the savepoint.
        rows: the number of rows in these batches, as far as the ledger still contains their decisions.
        is_exact: whether the ledger still contains the decision for every one of these batches.
        text: a sentence about the duplicated output.
    """

    sink: str
    first: int | None
    last: int | None
    rows: int
    is_exact: bool
    text: str


class Restored(NamedTuple):
    """A restored checkpoint.

    Attributes:
        checkpoint: the checkpoint location.
        query_id: the new query's id.
        savepoint: the savepoint from which the checkpoint was restored.
        repeated: for each queried sink, the output that will be duplicated.
    """

    checkpoint: Path
    query_id: str
    savepoint: Savepoint
    repeated: tuple[Repeated, ...]

    @property
    def settings(self) -> str:
        """The arguments of ``exactly_once`` for the first start."""
        previous = self.savepoint.manifest.query_id
        return f"override=[AdoptQuery({self.query_id!r}), EndQuery({previous!r})]"

    @property
    def to_check(self) -> str | None:
        """What must be true before a start with :attr:`settings`, and how to check that; None if the start itself checks that.

        If the start can read the old query's last decision, it completes that batch. It cannot read a decision that is in the
        old checkpoint, or in the ledger of a sink that the new query does not have. Usually, the batch is visible, because
        Spark has finished the savepoint's batch. However, Spark also finishes a batch if the user's function swallows errors.
        """
        old = self.savepoint.manifest
        is_in_checkpoint = old.log == RegisterLog.name
        affected = sorted(name for name, facts in old.sinks.items() if is_in_checkpoint or "ledger" not in facts)
        if not affected:
            return None
        sinks = f"sink{'' if len(affected) == 1 else 's'} {' and '.join(map(repr, affected))}"
        why = (
            "because the new query cannot read the old query's decisions. A start with EndQuery therefore deletes rows"
            if is_in_checkpoint
            else "but you can skip this check if the new query has all sinks of the old query. Otherwise, a start with EndQuery "
            "loses rows"
        )
        return (
            f"Before you end the old query, check that batch {old.batch_id} is visible in {sinks}, {why} that are decided but "
            "not visible yet. A batch can be in this state if the foreachBatch function has swallowed an error. Stop the old "
            f"query, and run `twopc status {old.taken_from} --sinks MODULE:NAME` with all of its sinks. For each sink without "
            f"a ledger, the command must report that batch {old.batch_id}, or a later batch, is decided and published. For each "
            "Kafka sink, it must report that all decided rows are visible. The exit status does not show this. If the command "
            "reports anything else, fix the function, and start the old query again. Let the old query process a batch, because "
            "it first publishes its last decided batch. Then stop the old query, check again, and take a new savepoint. If the "
            f"old checkpoint is lost, look for the rows of batch {old.batch_id} in the output"
        )

    def facts(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        return {
            "checkpoint": str(self.checkpoint),
            "query_id": self.query_id,
            "former_query_id": self.savepoint.manifest.query_id,
            "savepoint": str(self.savepoint.path),
            "batch_id": self.savepoint.manifest.batch_id,
            "settings": self.settings,
            "to_check": self.to_check,
            "repeated": [one._asdict() for one in self.repeated],
        }


def restore_savepoint(savepoint: Path, checkpoint: Path, *, sinks: Sequence[KafkaSink] = ()) -> Restored:
    """Create a new checkpoint from a savepoint. Check :attr:`Restored.to_check`. Then start with :attr:`Restored.settings`.

    Args:
        savepoint: a savepoint, or a directory of savepoints. From a directory, the newest good savepoint is used.
        checkpoint: the new checkpoint's directory, which must be missing or empty.
        sinks: the sinks to query for output that will be duplicated. The sinks are only read.

    Raises:
        ConfigurationError: no savepoint is good, batches in the savepoint are missing from a sink, or the checkpoint is
            not empty or cannot be written.
        TwoPhaseCommitError: no broker responds.
    """
    found, checkpoint = choose(savepoint), local_path(checkpoint)
    if checkpoint.exists() and (not checkpoint.is_dir() or any(checkpoint.iterdir())):
        raise ConfigurationError(
            f"{checkpoint} is not empty. Nothing was written. Restore the savepoint to a new checkpoint"
        )
    if found.path == local_path(savepoint):
        check(found)  # in a directory of savepoints, only a good one is chosen
    repeated = tuple(repeated_in(sink, found) for sink in sinks)
    name = str(uuid.uuid4())
    previous = found.manifest.query_id
    note = Note(savepoint=str(found.path), former_query_id=previous, batch_id=found.manifest.batch_id)
    try:
        with whole_directory(checkpoint) as unfinished:
            for file in found.manifest.files:
                if file == _METADATA:
                    write(unfinished / file, _of_query((found.path / TREE / file).read_bytes(), name))
                elif not file.startswith(_OURS):
                    require_intact(found, file, copy(found.path / TREE / file, unfinished / file))
            write(unfinished / _OURS / NOTE, seal(note))
    except OSError as error:
        raise ConfigurationError(f"{checkpoint} cannot be written: {error}. No partial copy is left") from error
    return Restored(checkpoint, name, found, repeated)


def repeated_in(sink: KafkaSink, savepoint: Savepoint) -> Repeated:
    """Find the visible output that the new query will write again, from the batches after the savepoint.

    Raises:
        ConfigurationError: the sink's decisions cannot be read, or do not include all batches in the savepoint.
        TwoPhaseCommitError: no broker responds.
    """
    state = observe(sink)
    if state.history is None:
        anyway = (
            ". This command cannot read these decisions. To restore the savepoint without this information, omit "
            "--bootstrap-servers"
        )
        raise ConfigurationError(
            f"sink {sink.name!r}: {state.problem}. It is therefore unknown which output would be duplicated. Nothing "
            f"was restored{anyway if state.is_elsewhere else ''}"
        )
    manifest = savepoint.manifest
    if state.query_id != manifest.query_id:
        raise ConfigurationError(
            f"sink {sink.name!r} now belongs to query {state.query_id}, but the savepoint is from query {manifest.query_id}. "
            f"Nothing was restored. Take a savepoint of query {state.query_id}, or restore without --bootstrap-servers and "
            "rename the sink"
        )
    later = {
        key.batch: sum(int(handle["rows"]) for _, handle in batch.handles(sink.name))
        for key, batch in state.history.batches.items()
        if key.query_id == manifest.query_id and key.batch > manifest.batch_id
    }
    highest = state.history.view.highest_batch_of(manifest.query_id)
    if (missing := missing_batches(highest, manifest.batch_id, f"sink {sink.name!r}")) is not None:
        raise ConfigurationError(
            f"{missing}. Nothing was restored. Use a savepoint of batch {highest} or earlier. If the missing batches "
            "have no rows for the sink, or if their rows were written by other means, restore without "
            "--bootstrap-servers"
        )
    if highest is None or highest == manifest.batch_id:
        text = f"nothing will be duplicated: batch {manifest.batch_id} is the last batch that {sink.name!r} received"
        return Repeated(sink.name, None, None, 0, is_exact=True, text=text)
    first, count = manifest.batch_id + 1, sum(later.values())
    batches = f"batch {first}" if first == highest else f"batches {first} to {highest}"
    is_exact = len(later) == highest - manifest.batch_id
    text = (
        f"sink {sink.name!r} has already received {batches}: {'' if is_exact else 'at least '}{counted(count, 'row')}. "
        "The input of these batches will be processed again, so their output will be duplicated"
    )
    return Repeated(sink.name, first, highest, count, is_exact=is_exact, text=text)


def _of_query(metadata: bytes, query_id: str) -> bytes:
    *head, last = metadata.decode().splitlines()
    return "\n".join([*head, json.dumps({**json.loads(last), "id": query_id}, separators=(",", ":"))]).encode()
