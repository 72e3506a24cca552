"""Doubles and gaps among more records than fit into memory: digests, partitioned to files by hash, examined one by one.

The classic of external duplicate elimination (Grace hash partitioning): equal digests meet in one file, and a file is
small enough to be sorted in memory. 128-bit digests collide among 10 million records once in 10**24 runs.
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
_SIGHTING: Final = np.dtype(
    [("high", "<u8"), ("low", "<u8"), ("number", "<i8"), ("topic", "<u2"), ("partition", "<i4"), ("offset", "<i8")]
)
_TAIL: Final = struct.Struct("<qHiq")
#: Of all buckets together, before they go to their files.
_BUFFER_ROWS: Final = 100_000
#: That are examined at once; some hundred bytes each while they are.
_PART_ROWS: Final = 500_000
_SAMPLE_ROWS: Final = 100_000


@contextlib.contextmanager
def on_disk() -> Iterator[None]:
    """The body writes to the temporary directory.

    Raises:
        ConfigurationError: it cannot: there is none, or it is full.
    """
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"the temporary directory cannot be used ({error}): set TMPDIR to one with room for {_SIGHTING.itemsize} bytes for "
            "each record and each of --key and --sequence"
        ) from error


class Place(NamedTuple):
    """Where a record is; the topic by its index."""

    topic: int
    partition: int
    offset: int


class Doubles(NamedTuple):
    """Records whose identity was seen before, and some pairs of them, the earlier sighting first."""

    doubled: int
    examples: tuple[tuple[Place, Place], ...]


class Gaps(NamedTuple):
    """Numbers that are missing between the smallest and the largest of their sequence.

    Attributes:
        missing: how many numbers.
        examples: (number before the gap, number after it, the record that has the latter).
    """

    missing: int
    examples: tuple[tuple[int, int, Place], ...]


class Spill:
    """Sightings of identities, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._directory.mkdir()
        self._buffers = [bytearray() for _ in range(BUCKETS)]
        self._rows = 0

    def add(self, identity: bytes, topic: int, partition: int, offset: int, number: int = 0) -> None:
        """Note a sighting. ``number``: its place in a sequence, of 64 bits.

        Raises:
            ConfigurationError: the disk is full.
        """
        digest = blake2b(identity, digest_size=_DIGEST_BYTES, salt=topic.to_bytes(2, "little")).digest()
        self._buffers[digest[0] % BUCKETS] += digest + _TAIL.pack(number, topic, partition, offset)
        self._rows += 1
        if self._rows >= _BUFFER_ROWS:
            self._flush()

    def doubles(self) -> Doubles:
        """Among all that were added so far."""
        count, examples = 0, list[tuple[Place, Place]]()
        for path in self._files():
            rows = _sorted(np.fromfile(path, _SIGHTING), "offset", "partition")
            doubled = np.flatnonzero(_same(rows))
            count += len(doubled)
            examples += [(_place(rows[i]), _place(rows[i + 1])) for i in doubled[: EXAMPLES - len(examples)]]
        return Doubles(count, tuple(examples))

    def gaps(self) -> Gaps:
        """Among all that were added so far, within each identity."""
        missing, examples = 0, list[tuple[int, int, Place]]()
        for path in self._files():
            last = np.empty(0, _SIGHTING)
            for part in _by_number(path):
                # The last sighting of each identity goes into the next part, where its numbers go on.
                rows = _sorted(np.concatenate([last, part]), "number")
                same, number = _same(rows), rows["number"]
                # As unsigned, the distance of any two 64-bit numbers is exact.
                step = (number[1:].view("<u8") - number[:-1].view("<u8")) * same
                wide = np.flatnonzero(step > 1)
                missing += sum(int(one) - 1 for one in step[wide])
                examples += [
                    (int(number[i]), int(number[i + 1]), _place(rows[i + 1])) for i in wide[: EXAMPLES - len(examples)]
                ]
                last = rows[np.append(~same, True)]
        return Gaps(missing, tuple(examples))

    def _files(self) -> Iterator[Path]:
        self._flush()
        yield from (path for path in map(self._path, range(BUCKETS)) if path.exists())

    def _flush(self) -> None:
        for bucket, buffer in enumerate(self._buffers):
            if buffer:
                with on_disk(), self._path(bucket).open("ab") as file:
                    file.write(buffer)
                buffer.clear()
        self._rows = 0

    def _path(self, bucket: int) -> Path:
        return self._directory / f"{bucket:02d}"


def _by_number(path: Path) -> Iterator[npt.NDArray[Any]]:
    """A file's sightings in parts that fit into memory, each part's numbers above the part's before.

    One long sequence has one identity, so all of it is in one file. Its parts are cut at the quantiles of a sample, and each
    is picked out of the whole file: reading it again costs less than writing it sorted.
    """
    rows = path.stat().st_size // _SIGHTING.itemsize
    parts = -(-rows // _PART_ROWS)
    if parts == 1:
        yield np.fromfile(path, _SIGHTING)
        return
    stride = max(1, parts * _PART_ROWS // _SAMPLE_ROWS)
    sample = np.sort(np.concatenate([chunk["number"][::stride].copy() for chunk in _chunks(path, rows)]))
    cuts = np.unique(sample[np.arange(1, parts) * len(sample) // parts])
    for part in range(len(cuts) + 1):
        found = np.concatenate(
            [chunk[np.searchsorted(cuts, chunk["number"], side="right") == part] for chunk in _chunks(path, rows)]
        )
        if len(found):
            yield found


def _chunks(path: Path, rows: int) -> Iterator[npt.NDArray[Any]]:
    for first in range(0, rows, _PART_ROWS):
        yield np.fromfile(path, _SIGHTING, _PART_ROWS, offset=first * _SIGHTING.itemsize)


def _sorted(rows: npt.NDArray[Any], *within: str) -> npt.NDArray[Any]:
    """Equal identities together, ordered by the columns ``within``, the last one first."""
    return rows[np.lexsort((*(rows[name] for name in within), rows["low"], rows["high"]))]


def _same(rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether each row's successor has the same identity."""
    same: npt.NDArray[np.bool_] = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    return same


def _place(row: Any) -> Place:
    return Place(int(row["topic"]), int(row["partition"]), int(row["offset"]))
