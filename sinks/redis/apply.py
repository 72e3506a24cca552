"""Applying what is decided, and asking Redis how far it has come. Every call here may be made any number of times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sinks.redis import keys, scripts
from sinks.redis.calls import Call, is_transient, is_transient_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sinks.redis.client import RedisLink
    from sinks.redis.writer import RedisHandle

_UNANSWERED: Final = "UNANSWERED"


def apply(link: RedisLink, sink: str, handle: RedisHandle, version: int) -> list[str]:
    """Apply a slice, each chunk in one step with its marker.

    Returns:
        what stands in the way, in words for people; empty where nothing does.
    """
    calls = []
    for chunk in range(max(chunks for _, chunks, _ in handle.groups)):
        for slot, chunks, weight in handle.groups:
            if chunk < chunks:
                words = (*_keys(sink, slot, handle), version, handle.uuid, chunk)
                calls.append(Call(slot, words, scripts.APPLY, keys=2, weight=weight // chunks))
    blocked: list[Any] = []

    def again(answer: Any) -> bool:
        if isinstance(answer, Exception):
            return is_transient(answer)
        if answer[0] == b"FAILED":
            if is_transient_text(answer[2].decode()):
                return True
            blocked.append(answer)
        # A chunk before it was not answered; it will be, unless something stands in the way.
        return bool(answer[0] == b"EARLIER" and not blocked)

    answers = link.ask(calls, again=again)
    failed = {f"key {answer[1].decode('utf-8', 'backslashreplace')!r}: {answer[2].decode()}" for answer in blocked}
    failed |= {str(answer) for answer in answers if isinstance(answer, Exception)}
    return sorted(failed)


def look(
    link: RedisLink, sink: str, handles: Sequence[RedisHandle], version: int, *, durable: bool = False
) -> dict[RedisHandle, list[str]]:
    """For each slice and slot: how far it is applied, and whether the rest is there; the words of the script ``LOOK``.

    Args:
        link: the way to Redis.
        sink: the sink's name.
        handles: the slices.
        version: that of their decision.
        durable: count as COMMITTED only what is as safe as the sink's settings ask for.
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
    answers = iter(link.ask(calls))
    found: dict[RedisHandle, list[str]] = {}
    for handle in handles:
        mine = [next(answers) for _ in handle.groups]
        found[handle] = [_UNANSWERED if isinstance(answer, Exception) else answer.decode() for answer in mine]
    return found


def bury(link: RedisLink, sink: str, handle: RedisHandle, version: int) -> bool:
    """Remove what is left of a slice of which nothing was applied, so that nothing ever will be.

    Returns:
        whether that is proven.
    """
    calls = [
        Call(slot, (*_keys(sink, slot, handle), version, handle.uuid), scripts.BURY, keys=2, durable=True)
        for slot, _, _ in handle.groups
    ]
    return all(answer == b"LOST" for answer in link.ask(calls))


def _keys(sink: str, slot: int, handle: RedisHandle) -> tuple[str, str]:
    return keys.applied(sink, slot), keys.staged(sink, slot, handle.entry)
