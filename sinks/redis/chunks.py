r"""Chunks: the commands of a slice as they are staged, and as the scripts read them.

``<command> <words> <commands>\n``, the lengths of all words as 32-bit big-endian integers, then the words. A chunk names its
command, so that a decided chunk is applied as it was meant even if the query's code has changed since.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from redis.crc import key_slot

from sinks.redis.keys import NO_SLOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True)
class Commands:
    """Commands of one kind.

    Attributes:
        name: such as ``HSET``.
        words: how many arguments each has, the key included, which is the first.
        flat: the arguments of all, one after the other.
    """

    name: str
    words: int
    flat: Sequence[bytes]

    @property
    def count(self) -> int:
        """How many commands there are."""
        return len(self.flat) // self.words

    def part(self, start: int, stop: int) -> Commands:
        """The commands from ``start`` up to, not including, ``stop``."""
        return replace(self, flat=self.flat[start * self.words : stop * self.words])


class Chunk(NamedTuple):
    """A chunk to stage.

    Attributes:
        commands: how many it holds.
        data: what is stored.
    """

    commands: int
    data: bytes


def cut(commands: Commands, *, max_commands: int, max_bytes: int) -> Iterator[Chunk]:
    """Split commands into chunks of limited size; a single command above ``max_bytes`` is a chunk of its own."""
    for start in range(0, commands.count, max_commands):
        yield from _halve(commands.part(start, start + max_commands), max_bytes)


def by_slot(commands: Commands, *, cluster: bool) -> dict[int, Commands]:
    """The commands of each hash slot, in their order."""
    if not cluster:
        return {NO_SLOT: commands}
    width = commands.words
    found: dict[int, list[bytes]] = {}
    for at in range(0, len(commands.flat), width):
        found.setdefault(key_slot(commands.flat[at]), []).extend(commands.flat[at : at + width])
    return {slot: replace(commands, flat=flat) for slot, flat in found.items()}


def fold(digests: Iterable[str]) -> str:
    """One checksum of the chunks' SHA-1."""
    return hashlib.sha1("".join(digests).encode(), usedforsecurity=False).hexdigest()


def _halve(commands: Commands, max_bytes: int) -> Iterator[Chunk]:
    lengths = list(map(len, commands.flat))
    if sum(lengths) <= max_bytes or commands.count == 1:
        head = f"{commands.name} {commands.words} {commands.count}\n".encode()
        yield Chunk(commands.count, b"".join([head, struct.pack(f">{len(lengths)}I", *lengths), *commands.flat]))
        return
    middle = commands.count // 2
    yield from _halve(commands.part(0, middle), max_bytes)
    yield from _halve(commands.part(middle, commands.count), max_bytes)
