"""Which batch a query is at, read from its checkpoint: the lineage, and the source offsets of any batch (rule 10)."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.files import Files

# The offset log's first line is its version, the second the batch's own metadata (watermark, time, settings).
_HEADER_LINES: Final = 2


@contextlib.contextmanager
def decoding(files: Files, name: str) -> Iterator[None]:
    """What the body takes apart is what the file ``name`` of a checkpoint holds.

    Raises:
        ConfigurationError: it is not what Spark writes there.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ConfigurationError(
            f"{files.location}/{name} cannot be read ({type(error).__name__}: {error}): it is torn or altered; restore the "
            "checkpoint from a backup"
        ) from error


def query_id(files: Files) -> str:
    """The query's id, which survives restarts.

    Raises:
        ConfigurationError: there is no checkpoint of a streaming query, or its metadata cannot be read.
    """
    data = files.read("metadata")
    if data is None:
        raise ConfigurationError(
            f"checkpoint_location={files.location!r} holds no streaming query's checkpoint: give exactly_once() the same path "
            "as .option('checkpointLocation', …)"
        )
    with decoding(files, "metadata"):
        return str(json.loads(data.decode().splitlines()[-1])["id"])


def source_offsets(files: Files, batch: int) -> tuple[str, ...] | None:
    """The source offsets of a batch, one canonical string a source; None where the checkpoint has none of it.

    A source whose offset is a mere counter (files) would give every copy of a checkpoint the same offsets: the entries
    that the counter stands for go in by their digest.

    Raises:
        ConfigurationError: they, or these entries, cannot be read.
    """
    data = files.read(f"offsets/{batch}")
    if data is None:
        return None
    with decoding(files, f"offsets/{batch}"):
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
    """Over the entries of ``sources/<i>/<counter>``, wherever compaction has put them (``<n>.compact`` holds all to n)."""
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
