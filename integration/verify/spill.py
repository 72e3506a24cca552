"""Find duplicates and gaps among more records than fit in memory.

The module uses Grace hash partitioning: it distributes digests over files by hash. So equal digests are in the same file, and
each file is small enough to sort in memory. 128-bit digests of 10 million records collide once in 10**24 runs.

DuckDB (2.0) is not an alternative. Although DuckDB spills to disk, it exceeds a memory limit of 128 MB when it sorts one
sequence of 40 million records. For 10 million records, this module needs about 200 MiB of memory. It needs half as much
disk space as DuckDB, and takes just as long.
"""

from __future__ import annotations

import contextlib
import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

BUCKETS: Final = 64
EXAMPLES: Final = 5
_DIGEST_BYTES: Final = 16
_ENTRY: Final = np.dtype(
    [("high", "<u8"), ("low", "<u8"), ("number", "<i8"), ("topic", "<u2"), ("partition", "<i4"), ("offset", "<i8")]
)
_TAIL: Final = struct.Struct("<qHiq")
#: The number of entries that all buckets keep in memory before they are written to files.
_BUFFER_ROWS: Final = 100_000
#: The number of entries that are examined together. During the examination, each entry takes about a hundred bytes of
#: memory.
_PART_ROWS: Final = 500_000
_SAMPLE_ROWS: Final = 100_000


@contextlib.contextmanager
def on_disk() -> Iterator[None]:
    """Convert an error that the body raises when it uses the temporary directory.

    Raises:
        ConfigurationError: the temporary directory does not exist or is full.
    """
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"the temporary directory cannot be used ({error}). Set TMPDIR to a directory with {_ENTRY.itemsize} "
            "bytes of free space for each record, or twice as much with both --key and --sequence"
        ) from error


class Place(NamedTuple):
    """The position of a record. ``topic`` is the topic's index."""

    topic: int
    partition: int
    offset: int


class Spill:
    """Stores one entry per record, in files in a separate directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._buffers = [bytearray() for _ in range(BUCKETS)]
        self._rows = 0

    def add(self, identity: bytes, topic: int, partition: int, offset: int, number: int = 0) -> None:
        """Add a record. ``number`` is the record's 64-bit number in a sequence.

        Raises:
            ConfigurationError: the disk is full.
        """
        digest = blake2b(identity, digest_size=_DIGEST_BYTES, salt=topic.to_bytes(2, "little")).digest()
        self._buffers[digest[0] % BUCKETS] += digest + _TAIL.pack(number, topic, partition, offset)
        self._rows += 1
        if self._rows >= _BUFFER_ROWS:
            self._flush()

    def duplicates(self) -> tuple[int, list[tuple[Place, Place]]]:
        """Count the records that have the same identity as an earlier record.

        Return the count, and examples as pairs (earlier, duplicate).
        """
        count, examples = 0, list[tuple[Place, Place]]()
        for path in self._files():
            rows = _sorted(np.fromfile(path, _ENTRY), "offset", "partition")
            repeated = np.flatnonzero(_same(rows))
            count += len(repeated)
            examples += [(_place(rows[i]), _place(rows[i + 1])) for i in repeated[: EXAMPLES - len(examples)]]
        return count, examples

    def gaps(self) -> tuple[int, list[tuple[int, int, Place]]]:
        """For each identity, find the numbers that are missing between the smallest and the largest number.

        Returns:
            The count of missing numbers, and examples of gaps. Each example contains the number before the gap, the
            number after the gap, and the position of the record after the gap.
        """
        missing, examples = 0, list[tuple[int, int, Place]]()
        for path in self._files():
            last = np.empty(0, _ENTRY)
            for part in _by_number(path):
                # The last entry of each identity is also part of the next chunk, where the identity's numbers continue.
                rows = _sorted(np.concatenate([last, part]), "number")
                same, number = _same(rows), rows["number"]
                # In unsigned arithmetic, the distance between any two 64-bit numbers is exact.
                step = (number[1:].view("<u8") - number[:-1].view("<u8")) * same
                wide = np.flatnonzero(step > 1)
                missing += sum(int(one) - 1 for one in step[wide])
                shown = wide[: EXAMPLES - len(examples)]
                examples += [(int(number[i]), int(number[i + 1]), _place(rows[i + 1])) for i in shown]
                last = rows[np.append(~same, True)]
        return missing, examples

    def _files(self) -> Iterator[Path]:
        self._flush()
        return (path for path in map(self._path, range(BUCKETS)) if path.exists())

    def _flush(self) -> None:
        with on_disk():
            self._directory.mkdir(exist_ok=True)
            for bucket, buffer in enumerate(self._buffers):
                if buffer:
                    with self._path(bucket).open("ab") as file:
                        file.write(buffer)
                    buffer.clear()
        self._rows = 0

    def _path(self, bucket: int) -> Path:
        return self._directory / f"{bucket:02d}"


def _by_number(path: Path) -> Iterator[npt.NDArray[Any]]:
    """Yield a file's entries in parts that fit in memory.

    All numbers in a part are greater than the numbers in the previous part. A long sequence has a single identity, so all its
    entries are in one file. The quantiles of a sample divide the file into parts. For each part, the function reads the file
    again, because this costs less than writing a sorted file.
    """
    rows = path.stat().st_size // _ENTRY.itemsize
    stride = max(1, rows // _SAMPLE_ROWS)
    sample = np.sort(np.concatenate([chunk["number"][::stride].copy() for chunk in _chunks(path)]))
    parts = -(-rows // _PART_ROWS)
    cuts = np.unique(sample[np.arange(1, parts) * len(sample) // parts])
    for part in range(len(cuts) + 1):
        found = np.concatenate(
            [chunk[np.searchsorted(cuts, chunk["number"], side="right") == part] for chunk in _chunks(path)]
        )
        if len(found):
            yield found


def _chunks(path: Path) -> Iterator[npt.NDArray[Any]]:
    with path.open("rb") as file:
        while len(chunk := np.fromfile(file, _ENTRY, _PART_ROWS)):
            yield chunk


def _sorted(rows: npt.NDArray[Any], *within: str) -> npt.NDArray[Any]:
    """Sort by identity, and within an identity by the columns ``within``. The last of these columns is the primary sort key."""
    return rows[np.lexsort((*(rows[name] for name in within), rows["low"], rows["high"]))]


def _same(rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """For each row except the last, return whether the next row has the same identity."""
    same: npt.NDArray[np.bool_] = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    return same


def _place(row: Any) -> Place:
    return Place(int(row["topic"]), int(row["partition"]), int(row["offset"]))
