"""Applying decided slices, and reading how far they are applied. Every call may be repeated any number of times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sinks.redis import keys, scripts
from sinks.redis.calls import Call, is_transient, is_transient_text
from sinks.staged.slices import SliceState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sinks.redis.client import RedisClient
    from sinks.redis.handle import RedisHandle


def apply(client: RedisClient, sink: str, handle: RedisHandle, version: int) -> list[str]:
    """Apply a slice, each chunk in one step with its marker.

    Returns:
        what blocks it, in words for people; empty: nothing does.
    """
    calls = []
    for chunk in range(max(chunks for _, chunks, _ in handle.groups)):
        for slot, chunks, weight in handle.groups:
            if chunk < chunks:
                words = (*_keys(sink, slot, handle), version, handle.uuid, chunk)
                calls.append(Call(slot, words, scripts.APPLY, keys=2, weight=weight // chunks))
    blocked: list[Any] = []

    def retry_if(answer: Any) -> bool:
        if isinstance(answer, Exception):
            return is_transient(answer)
        if answer[0] == b"FAILED":
            if is_transient_text(answer[2].decode()):
                return True
            blocked.append(answer)
        # An earlier chunk has no answer yet; it will have one, unless something blocks the slice.
        return bool(answer[0] == b"EARLIER" and not blocked)

    answers = client.execute(calls, retry_if=retry_if)
    failed = {f"key {answer[1].decode('utf-8', 'backslashreplace')!r}: {answer[2].decode()}" for answer in blocked}
    failed |= {str(answer) for answer in answers if isinstance(answer, Exception)}
    return sorted(failed)


def look(
    client: RedisClient, sink: str, handles: Sequence[RedisHandle], version: int, *, durable: bool = False
) -> dict[RedisHandle, list[SliceState]]:
    """Look at each slice, slot by slot.

    Args:
        client: to execute it.
        sink: the sink's name.
        handles: the slices.
        version: their decision's.
        durable: report COMMITTED only what is as safe as the sink's settings ask for.
    """
    calls = [
        Call(
            slot,
            (*_keys(sink, slot, handle), version, handle.uuid, chunks, int(durable)),
            scripts.LOOK,
            2,
            durable=durable,
        )
        for handle in handles
        for slot, chunks, _ in handle.groups
    ]
    states = [
        SliceState.UNANSWERED if isinstance(answer, Exception) else SliceState(answer.decode())
        for answer in client.execute(calls)
    ]
    remaining = iter(states)
    return {handle: [next(remaining) for _ in handle.groups] for handle in handles}


def tombstone(client: RedisClient, sink: str, handle: RedisHandle, version: int) -> bool:
    """Remove what is left of a slice of which nothing was applied, so that nothing of it ever will be.

    Returns:
        whether that is proven.
    """
    calls = [
        Call(slot, (*_keys(sink, slot, handle), version, handle.uuid), scripts.TOMBSTONE, keys=2, durable=True)
        for slot in handle.slots
    ]
    return all(answer == b"LOST" for answer in client.execute(calls))


def _keys(sink: str, slot: int, handle: RedisHandle) -> tuple[str, str]:
    return keys.applied(sink, slot), keys.staged(sink, slot, handle.entry)
