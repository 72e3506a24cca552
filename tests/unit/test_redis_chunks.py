"""Commands are cut into chunks by count and size; every word keeps its place."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from twopc.sinks.redis.chunks import Commands, by_slot, cut
from twopc.sinks.redis.keys import NO_SLOT, SLOTS, applied, control, slices, staged

_COMMANDS = st.integers(1, 4).flatmap(
    lambda words: st.lists(
        st.lists(st.binary(max_size=9), min_size=words, max_size=words), min_size=1, max_size=30
    ).map(lambda rows: Commands("HSET", words, [word for row in rows for word in row]))
)


def read(data: bytes) -> list[bytes]:
    """Parse a chunk as the Lua scripts do."""
    head, _, rest = data.partition(b"\n")
    _, words, count = head.split()
    total = int(words) * int(count)
    lengths = struct.unpack(f">{total}I", rest[: 4 * total])
    found, at = [], 4 * total
    for length in lengths:
        found.append(rest[at : at + length])
        at += length
    assert at == len(rest)
    return found


@given(_COMMANDS, st.integers(1, 7), st.integers(1, 60))
def test_chunks_contain_all_words_in_their_order(commands: Commands, max_commands: int, max_bytes: int) -> None:
    chunks = list(cut(commands, max_commands=max_commands, max_bytes=max_bytes))
    assert [word for _, data in chunks for word in read(data)] == list(commands.flat)
    assert sum(count for count, _ in chunks) == commands.count
    for count, data in chunks:
        assert 1 <= count <= max_commands
        assert count == 1 or sum(map(len, read(data))) <= max_bytes


@given(_COMMANDS)
def test_cluster_groups_cover_one_hash_slot_each_and_keep_their_order(commands: Commands) -> None:
    groups = by_slot(commands, cluster=True)
    rows = [tuple(commands.flat[at : at + commands.words]) for at in range(0, len(commands.flat), commands.words)]
    for slot, group in groups.items():
        mine = [word for row in rows if key_slot(row[0]) == slot for word in row]
        assert list(group.flat) == mine
    assert sum(group.count for group in groups.values()) == commands.count


def test_all_keys_form_one_group_without_a_cluster() -> None:
    commands = Commands("DEL", 1, [b"a", b"b"])
    assert by_slot(commands, cluster=False) == {NO_SLOT: commands}


def test_keys_made_for_a_hash_slot_belong_to_that_slot() -> None:
    for slot in (0, 1, 7_777, SLOTS - 1):
        assert key_slot(applied("s", slot).encode()) == key_slot(staged("s", slot, "1:x").encode()) == slot


def test_the_control_and_slices_keys_share_one_hash_slot() -> None:
    assert key_slot(control("totals").encode()) == key_slot(slices("totals").encode())
