"""What Spark's checkpoint says: the query's id, and the source offsets of each batch (rule 10)."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from twopc.batch import Batch
from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.files import Files

# The offset log's first line is its version, the second the batch's own metadata (watermark, time, settings).
_HEADER_LINES: Final = 2


@contextlib.contextmanager
def decoding(files: Files, name: str) -> Iterator[None]:
    """Report what goes wrong while the body decodes the file ``name`` of a checkpoint.

    Raises:
        ConfigurationError: the file does not hold what Spark writes there.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ConfigurationError(
            f"{files.location}/{name} cannot be read ({type(error).__name__}: {error}): the file is torn or was altered. "
            "Restore the checkpoint from a backup"
        ) from error


def query_id(files: Files) -> str:
    """The query's id, which survives restarts.

    Raises:
        ConfigurationError: the directory is no checkpoint, or its metadata cannot be read.
    """
    data = files.read("metadata")
    if data is None:
        raise ConfigurationError(
            f"checkpoint_location={files.location!r} holds no streaming query's checkpoint: give exactly_once() the same "
            "path as .option('checkpointLocation', …)"
        )
    with decoding(files, "metadata"):
        return str(json.loads(data.decode().splitlines()[-1])["id"])


def read_batch(files: Files, query_id: str, batch_id: int) -> Batch:
    """A batch that Spark has planned: its offsets are in the checkpoint before ``foreachBatch`` is called.

    Raises:
        ConfigurationError: the checkpoint has no such batch, or it cannot be read.
    """
    offsets = source_offsets(files, batch_id)
    if offsets is None:
        raise ConfigurationError(
            f"{files.location}/offsets has no batch {batch_id}: give exactly_once() the checkpoint of this query"
        )
    return Batch(query_id, batch_id, offsets, offsets_of=lambda other: source_offsets(files, other))


def source_offsets(files: Files, batch_id: int) -> tuple[str, ...] | None:
    """The source offsets of a batch, one canonical string for each source; None if the checkpoint has no such batch.

    A file source's offset is a counter, the same in every copy of a checkpoint. So the digest of the entries that the
    counter stands for is added to it.

    Raises:
        ConfigurationError: the offsets or the entries cannot be read.
    """
    data = files.read(f"offsets/{batch_id}")
    if data is None:
        return None
    with decoding(files, f"offsets/{batch_id}"):
        return tuple(
            _canonical(files, index, line) for index, line in enumerate(data.decode().splitlines()[_HEADER_LINES:])
        )


def _canonical(files: Files, source: int, line: str) -> str:
    try:
        offset = json.loads(line)
    except ValueError:
        return line
    if isinstance(offset, dict) and set(offset) == {"logOffset"}:
        offset["digest"] = _digest(files, source, int(offset["logOffset"]))
    return json.dumps(offset, sort_keys=True, separators=(",", ":"))


def _digest(files: Files, source: int, counter: int) -> str:
    """Over the entries of ``sources/<i>/<counter>``. Compaction moves entries: ``<n>.compact`` holds all up to n."""
    directory = f"sources/{source}"
    names = files.names(directory)
    compacted = sorted(int(name.removesuffix(".compact")) for name in names if name.endswith(".compact"))
    candidates = [str(counter), *(f"{number}.compact" for number in compacted if number >= counter)]
    for name in candidates:
        data = files.read(f"{directory}/{name}") if name in names else None
        if data is not None:
            with decoding(files, f"{directory}/{name}"):
                entries = [line for line in data.decode().splitlines()[1:] if _belongs(line, counter)]
            return hashlib.sha256("\n".join(sorted(entries)).encode()).hexdigest()
    return ""


def _belongs(line: str, counter: int) -> bool:
    entry: Any = json.loads(line)
    return not isinstance(entry, dict) or entry.get("batchId", counter) == counter
