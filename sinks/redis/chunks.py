r"""Pack a slice's commands into chunks, which the scripts read.

A chunk consists of ``<command> <words> <commands>\n``, the lengths of all words as 32-bit big-endian integers, and the words.
A chunk contains its command's name, so the driver applies a decided chunk correctly even if the query's code has
changed since the chunk was staged.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from redis.crc import key_slot

from twopc.sinks.redis.keys import NO_SLOT
from twopc.sinks.staged.slices import halve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True)
class Commands:
    """Several commands with the same name.

    Attributes:
        name: the command's name, such as ``HSET``.
        words: the number of arguments of each command, including the key, which comes first.
        flat: all commands' arguments, one after another.
    """

    name: str
    words: int
    flat: Sequence[bytes]

    @property
    def count(self) -> int:
        """The number of commands."""
        return len(self.flat) // self.words

    def pack(self, part: range) -> bytes:
        """Encode some of the commands."""
        flat = self.flat[part.start * self.words : part.stop * self.words]
        head = f"{self.name} {self.words} {len(part)}\n".encode()
        return b"".join([head, struct.pack(f">{len(flat)}I", *map(len, flat)), *flat])


def cut(commands: Commands, *, max_commands: int, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Split commands into chunks of limited size.

    Yield each chunk with its number of commands. A command that exceeds the limit gets its own chunk.
    """
    every = range(commands.count)
    for start in every[::max_commands]:
        for part, data in halve(every[start : start + max_commands], commands.pack, max_bytes=max_bytes):
            yield len(part), data


def by_slot(commands: Commands, *, cluster: bool) -> dict[int, Commands]:
    """Group the commands by hash slot, keeping their order."""
    if not cluster:
        return {NO_SLOT: commands}
    width = commands.words
    found: dict[int, list[bytes]] = {}
    for at in range(0, len(commands.flat), width):
        found.setdefault(key_slot(commands.flat[at]), []).extend(commands.flat[at : at + width])
    return {slot: replace(commands, flat=flat) for slot, flat in found.items()}


def fold(digests: Iterable[str]) -> str:
    """Combine the chunks' SHA-1 digests into one checksum."""
    return hashlib.sha1("".join(digests).encode(), usedforsecurity=False).hexdigest()
