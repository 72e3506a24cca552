"""Write and check a staged file.

A staged file is an Arrow IPC file, followed by its length and its CRC, because Arrow does not check a file for damage.
"""

from __future__ import annotations

import io
import re
import zlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

_END: Final = re.compile(rb"([0-9a-f]{16})([0-9a-f]{8})twopc/1\n")
_END_BYTES: Final = 32
_BLOCK: Final = 1024 * 1024


class Summed(io.RawIOBase):
    """A stream that accepts an Arrow file and appends a trailer. A file that was closed without a trailer is treated as torn."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._size = self._crc = 0

    def writable(self) -> bool:
        """Return True, because the stream accepts data."""
        return True

    def write(self, data: Any) -> int:
        """Write bytes, and update the checksum."""
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._stream.write(data)
        return len(data)

    def finish(self) -> None:
        """Append the trailer, and close the stream."""
        self._stream.write(b"%016x%08xtwopc/1\n" % (self._size, self._crc))
        self.close()

    def close(self) -> None:
        """Close the stream. Python's garbage collector also calls this method."""
        super().close()
        self._stream.close()


def arrow_size(source: pa.NativeFile) -> int | None:
    """Return the length of a staged file's Arrow file in bytes, or None if the staged file is torn.

    Read only the trailer.
    """
    size = source.size()
    source.seek(max(0, size - _END_BYTES))
    found = _END.fullmatch(source.read(_END_BYTES))
    return size - _END_BYTES if found is not None and int(found[1], 16) == size - _END_BYTES else None


def is_whole(source: pa.NativeFile) -> bool:
    """Whether the staged file is complete and unchanged since it was written."""
    length = arrow_size(source)
    if length is None:
        return False
    source.seek(length)
    found = _END.fullmatch(source.read(_END_BYTES))
    if found is None:
        return False
    source.seek(0)
    crc, left = 0, length
    while left and (block := source.read(min(_BLOCK, left))):
        crc, left = zlib.crc32(block, crc), left - len(block)
    return crc == int(found[2], 16)
