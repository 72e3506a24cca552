"""Read Spark's checkpoint: the query id, and each batch's source offsets (rule 10)."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from twopc.batch import Batch
from twopc.errors import ConfigurationError
from twopc.times import Times

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from twopc.files import Files

#: How much of a file source's log is read at first.
_END_BYTES: Final = 64 * 1024
#: The setting from which Spark takes the number of state partitions (``IncrementalExecution.numStateStores``). A batch's file
#: contains the value with which the query began. If the query's state was repartitioned later, the file contains the new value.
_STATE_PARTITIONS: Final = "spark.sql.shuffle.partitions"


@contextlib.contextmanager
def decoding(files: Files, name: str) -> Iterator[None]:
    """If the body raises an error while it decodes the checkpoint file ``name``, convert the error to a ConfigurationError.

    Raises:
        ConfigurationError: the file does not contain what Spark writes.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ConfigurationError(
            f"{files.location}/{name} cannot be read ({type(error).__name__}: {error}). The file is torn or was "
            "altered. Restore the checkpoint from a backup"
        ) from error


def query_id(files: Files) -> str:
    """Read the query id, which survives restarts.

    Raises:
        ConfigurationError: the directory is not a checkpoint, or its metadata cannot be read.
    """
    data = files.read("metadata")
    if data is None:
        raise ConfigurationError(
            f"checkpoint_location={files.location!r} is not the checkpoint of a streaming query. Nothing was written. Pass the "
            "same path as in .option('checkpointLocation', …). In a classic session, you may also omit checkpoint_location, so "
            "that exactly_once() finds it. Under Spark Connect, write file:/… in both places, because Spark looks for a path "
            "without file: on the file system that fs.defaultFS names"
        )
    with decoding(files, "metadata"):
        return str(json.loads(_split(data)[-1])["id"])


def numbers(files: Files, directory: str) -> set[int]:
    """List the numbered files in a directory of the checkpoint. In ``offsets`` and ``commits``, they are the batches."""
    return {int(name) for name in files.names(directory) if name.isdecimal()}


def read_batch(files: Files, query_id: str, batch_id: int) -> Batch:
    """Read a batch that Spark has planned. Spark writes a batch's offsets to the checkpoint before it calls ``foreachBatch``.

    Raises:
        ConfigurationError: the batch is not in the checkpoint or cannot be read.
    """
    # Every batch compares itself with the one before it, so read each file only once.
    entry = functools.cache(lambda other: read_entry(files, other))
    offsets = _source_offsets(files, batch_id, entry(batch_id))
    if offsets is None:
        raise ConfigurationError(
            f"{files.location}/offsets contains no entry for batch {batch_id}, so the toolkit could not recognize a replay "
            "of the batch. This call wrote nothing. Possible causes: (1) The query sets "
            ".option('asyncProgressTrackingEnabled', …). With this option, Spark records offsets only for some batches. "
            "Remove the option. If another sink has already run with this option, that sink must finish first: "
            "docs/migration.md#do-you-need-to-migrate. (2) The checkpoint does not belong to this query. Pass this query's "
            "checkpoint. After either change, restart"
        )
    return Batch(
        query_id,
        batch_id,
        offsets,
        offsets_of=lambda other: _source_offsets(files, other, entry(other)),
        times_of=lambda other: None if (found := entry(other)) is None else found.times,
        keeps_state=lambda: bool(files.names("state")),
    )


class Entry(NamedTuple):
    """The file ``offsets/N``.

    Attributes:
        by_source: each source's name or number, and its offset as Spark wrote it, in a stable order.
        times: the batch's times; None if the file does not contain them.
        state_partitions: the number of partitions of each stateful operator; None if the file does not contain it.
        is_epoch: whether a continuous trigger wrote the file. Such a file has no metadata.
    """

    by_source: dict[str, str]
    times: Times | None
    state_partitions: int | None
    is_epoch: bool


def source_offsets(files: Files, batch_id: int) -> tuple[str, ...] | None:
    """Read a batch's source offsets, as one canonical string for each source.

    Return None if the checkpoint does not contain the batch.

    If the query names a source (Spark 4.2), the source's string begins with this name: ``orders:{"t":{"0":5}}``.

    A file source's offset is only a counter, which may be the same in every copy of a checkpoint. So the string also contains
    a digest of the log entries that the counter covers. The digest is omitted if it is not certain which log belongs to the
    source. For example, a source that a query reads twice (``a.union(a)``) has two offsets, but one log, and only the first
    offset contains a digest.

    Raises:
        ConfigurationError: the offsets or the entries cannot be read.
    """
    return _source_offsets(files, batch_id, read_entry(files, batch_id))


def _source_offsets(files: Files, batch_id: int, entry: Entry | None) -> tuple[str, ...] | None:
    if entry is None:
        return None
    offsets = entry.by_source
    logs = _logs(files, offsets)
    with decoding(files, f"offsets/{batch_id}"):
        canonical = {source: _canonical(files, source in logs and source, line) for source, line in offsets.items()}
    return tuple(text if source.isdecimal() else f"{source}:{text}" for source, text in canonical.items())


def offsets_by_source(files: Files, batch_id: int) -> dict[str, str] | None:
    """Read a batch's source offsets as Spark wrote them.

    Return None if the checkpoint does not contain the batch; see :class:`Entry`.

    Raises:
        ConfigurationError: the file is torn, or has an unknown version.
    """
    entry = read_entry(files, batch_id)
    return None if entry is None else entry.by_source


def read_entry(files: Files, batch_id: int) -> Entry | None:
    """Read the file ``offsets/<batch_id>``. Return None if it does not exist.

    Version 1 of the file has one line per source. Version 2 (Spark 4.2) has lines ``source:offset``, in hash-map order.
    Source: ``OffsetSeqLog.scala``; seen on Spark 4.3.0.

    Raises:
        ConfigurationError: the file is torn, or has an unknown version.
    """
    name = f"offsets/{batch_id}"
    data = files.read(name)
    if data is None:
        return None
    with decoding(files, name):
        version, metadata, *lines = _split(data)
        if version == "v1":
            return Entry({str(number): line for number, line in enumerate(lines)}, *_facts(metadata))
        if version == "v2":
            named = (line.split(":", 1) for line in lines)
            return Entry(dict(sorted((source, offset) for source, offset in named)), *_facts(metadata))
    raise ConfigurationError(
        f"{files.location}/{name} has version {version!r}, but this release reads only v1 and v2. Nothing was "
        "written. Set spark.sql.streaming.offsetLog.formatVersion to 1 in a new checkpoint, or use a newer release"
    )


def _facts(metadata: str) -> tuple[Times | None, int | None, bool]:
    """Parse the facts of an :class:`Entry` that are not offsets."""
    found = dict(json.loads(metadata or "{}"))
    watermark_ms, timestamp_ms = found.get("batchWatermarkMs"), found.get("batchTimestampMs")
    partitions = dict(found.get("conf", {})).get(_STATE_PARTITIONS)
    times = None if watermark_ms is None or timestamp_ms is None else Times(int(watermark_ms), int(timestamp_ms))
    return times, None if partitions is None else int(partitions), not metadata


def planning_time_ms(files: Files, batch_id: int) -> int:
    """Return when Spark began to plan the batch, in milliseconds since 1970. The file ``offsets/<batch_id>`` must exist.

    Raises:
        ConfigurationError: the file cannot be read, or a continuous trigger wrote it.
    """
    times = require_planned(files, batch_id).times
    with decoding(files, f"offsets/{batch_id}"):
        if times is None:
            raise LookupError("the file contains no times")
        return times.timestamp_ms


def require_planned(files: Files, batch_id: int) -> Entry:
    """Check that Spark planned the batch, and that the batch is not an epoch of a continuous trigger. Return the batch's entry.

    Spark records an epoch only after its rows, and without metadata (``ContinuousExecution.addOffset``). So after a stop, the
    output usually contains rows that the checkpoint does not record.

    Raises:
        ConfigurationError: the batch is such an epoch, or ``offsets/<batch_id>`` cannot be read.
    """
    name = f"offsets/{batch_id}"
    entry = read_entry(files, batch_id)
    with decoding(files, name):
        if entry is None:
            raise LookupError("the file does not exist")
    if entry.is_epoch:
        raise ConfigurationError(
            f"{files.location}/{name} was written by a query with trigger(continuous=…), and such a query records rows only "
            "after writing them. So the output may contain rows that the checkpoint does not record, and another writer "
            "would write them again. Nothing was done. Start the old query with trigger(availableNow=True), and let it "
            "finish a batch. As after every restart, the old query writes the unrecorded rows again"
        )
    return entry


def _split(data: bytes) -> list[str]:
    """Split a file into lines as Spark does, at line feeds and carriage returns only.

    ``str.splitlines`` also splits at other characters, which may be part of an offset (U+2028, for example).
    """
    return [line.decode() for line in data.splitlines()]


def _logs(files: Files, offsets: Mapping[str, str]) -> set[str]:
    """Find the sources whose file log is certainly ``sources/<source>``.

    If a source has no name, its number is its position in the query. Spark numbers the directories in the same order, but a
    source that is read twice has one directory for its two positions. So all later positions are higher than the directories'
    numbers.
    """
    if not any('"logOffset"' in line for line in offsets.values()):
        return set()
    logs = set(files.names("sources"))
    # A store's listing may omit a new directory. The first batch writes a log's first entry, and each later batch adds
    # its own entry.
    for source in offsets.keys() - logs:
        first = f"sources/{source}/{_counter(_parsed(offsets[source])) or 0}"
        if any(files.read_end(name, 1) is not None for name in (first, f"{first}.compact")):
            logs.add(source)
    positions = {source for source in offsets if source.isdecimal()}
    if max(positions, key=int, default="") in logs:
        return logs  # the last position has its directory, so no source is read twice
    return logs - {source for source in positions if _may_repeat(offsets, int(source))}


def _may_repeat(offsets: Mapping[str, str], last: int) -> bool:
    """Whether one source may have two of the positions up to this one.

    Such a source has the same offset at both positions (version 1), or no offset at the first of them (version 2).
    """
    found = {offset for source, offset in offsets.items() if source.isdecimal() and int(source) <= last}
    return len(found) <= last


def _parsed(line: str) -> Any:
    """Parse the offset. Return None if the source does not use JSON."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _counter(offset: Any) -> int | None:
    """Return the counter from a file source's offset, or None for other sources."""
    return int(offset["logOffset"]) if isinstance(offset, dict) and set(offset) == {"logOffset"} else None


def _canonical(files: Files, log: str | Literal[False], line: str) -> str:
    offset = _parsed(line)
    if offset is None:
        return line
    counter = _counter(offset)
    if counter is not None and log:
        offset["digest"] = _digest(files, f"sources/{log}", counter)
    return json.dumps(offset, sort_keys=True, separators=(",", ":"))


def _digest(files: Files, directory: str, counter: int) -> str:
    """Compute the digest of the counter's entries in a file source's log. Return an empty text if no file contains them."""
    for name in _candidates(files, directory, counter):
        entries = _entries(files, name, counter)
        if entries is not None:
            return hashlib.sha256(b"\n".join(sorted(entries))).hexdigest()
    return ""


def _candidates(files: Files, directory: str, counter: int) -> Iterator[str]:
    """Yield the names of the files that may contain the counter's entries.

    Compaction moves entries: ``<n>.compact`` contains all entries up to n.
    """
    # These two names do not come from the listing, because a store's listing may omit a new file.
    yield f"{directory}/{counter}"
    yield f"{directory}/{counter}.compact"
    names = files.names(directory)
    compacted = sorted(int(name.removesuffix(".compact")) for name in names if name.endswith(".compact"))
    yield from (f"{directory}/{number}.compact" for number in compacted if number > counter)


def _entries(files: Files, name: str, counter: int) -> list[bytes] | None:
    """Read the counter's entries from a file. Return None if the file does not exist.

    A compacted file grows for as long as the query runs. Spark orders a file's entries by their counters
    (``CompactibleFileStreamLog.compact``). So read the file from its end until an entry has a smaller counter.
    """
    size = _END_BYTES
    while (data := files.read_end(name, size)) is not None:
        lines = data.splitlines()[1:]  # the first line is the version, or may be a part of an entry
        with decoding(files, name):
            if len(data) < size or (lines and _counter_of(lines[0], counter) < counter):
                return [line for line in lines if _counter_of(line, counter) == counter]
        size *= 4
    return None


def _counter_of(line: bytes, default: int) -> int:
    entry: Any = json.loads(line)
    return int(entry.get("batchId", default)) if isinstance(entry, dict) else default
