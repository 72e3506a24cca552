"""Before the decision, check that every chunk exists unchanged, and that Redis will execute the chunk's commands.

A command that failed after the decision would stop the query permanently. For almost all batches, one read of every chunk is
enough. But a batch could push a counter past its limit, or a counter may contain a number that Lua and the command read
differently. For such a batch, the driver rehearses the increments: it executes them on copies, in the order in which they will
be applied.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import BadRecordError, RetriableError
from twopc.sinks.redis import keys
from twopc.sinks.redis.check_scripts import CHECK, REHEARSE
from twopc.sinks.redis.chunks import fold
from twopc.sinks.redis.client import Call
from twopc.sinks.redis.errors import is_transient, is_transient_text
from twopc.sinks.staged.client import checked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twopc.sinks.redis.client import RedisClient
    from twopc.sinks.redis.keys import RedisHandle

_ADVICE: Final = "Delete or rename the key, correct its value, or use a different key in the mapping"


class Check:
    """Checks one sink's slices with the driver's client."""

    def __init__(self, client: RedisClient, sink: str) -> None:
        self._client = client
        self._sink = sink

    def checksums(self, handles: Sequence[RedisHandle]) -> dict[RedisHandle, str | Exception]:
        """Check the slices, and return the current checksum of each slice's staged data.

        Raises:
            BadRecordError: a command cannot be applied to its key.
            ConfigurationError: the user has no permission to run a command, or to run it on a certain key.
            RetriableError: the server currently executes no writes.
            Exception: one of the client's ``failures``.
        """
        chunks = [(handle, *chunk) for handle in handles for chunk in _chunks(handle)]
        calls = [
            Call(
                slot, (self._staged(handle, slot), number, keys.scratch(self._sink, slot)), CHECK, keys=1, weight=weight
            )
            for handle, slot, number, weight in chunks
        ]
        answers = self._client.execute(calls, retry_if=_may_pass)
        found: dict[RedisHandle, list[str]] = {handle: [] for handle in handles}
        failed: dict[RedisHandle, str | Exception] = {}
        farthest, moved = 0.0, 0.0
        for (handle, *_), answer in zip(chunks, answers, strict=True):
            if isinstance(answer, Exception):
                failed.setdefault(handle, answer)
            elif answer:  # an empty response means that the chunk is missing
                if answer[2]:
                    raise self._refusal(answer[1], answer[2])
                found[handle].append(text_of(answer[0]))
                farthest, moved = max(farthest, float(answer[3])), moved + float(answer[4])
        if farthest + moved > 1 and not failed:
            self._rehearse(handles)
        return {handle: fold(digests) for handle, digests in found.items()} | failed

    def _rehearse(self, handles: Sequence[RedisHandle]) -> None:
        """Execute all increments on copies, one chunk after another.

        Each chunk's increments start from the previous chunk's results.
        """
        name, positions = uuid.uuid4().hex, dict.fromkeys((slot for handle in handles for slot in handle.slots), 0)
        try:
            for handle in handles:
                for slot, number, weight in _chunks(handle):
                    places = keys.rehearsal(self._sink, slot), keys.scratch(self._sink, slot)
                    words = self._staged(handle, slot), number, positions[slot], name, *places
                    call = Call(slot, words, REHEARSE, keys=1, weight=weight)
                    positions[slot] += 1
                    [answer] = checked(self._client.execute([call]))
                    if answer and answer[0] == b"REFUSED":
                        _, key, error, command, held = answer
                        raise self._refusal(key, error, f"{text_of(command)} on {text_of(held)!r} returns ")
                    if answer and answer[0] == b"LOST":
                        what = "Redis lost data that the check had written. Nothing was decided"
                        raise RetriableError(f"sink {self._sink!r}: {what}. A new attempt will repeat the check")
        finally:
            # If this fails, the next rehearsal removes the copies.
            self._client.execute([Call(slot, ("UNLINK", keys.rehearsal(self._sink, slot))) for slot in positions])

    def _staged(self, handle: RedisHandle, slot: int) -> str:
        return keys.staged(self._sink, slot, handle.entry)

    def _refusal(self, key: bytes, reason: bytes, where: str = "") -> Exception:
        what = f"sink {self._sink!r}: {refused(key, reason, where)}. No part of this attempt was applied"
        if remedy := self._client.remedy(text_of(reason)):
            kind, advice = remedy
            return kind(f"{what}. {advice}")
        if is_transient_text(text_of(reason)):
            return RetriableError(what)
        return BadRecordError(f"{what}. {_ADVICE}")


def refused(key: bytes, reason: bytes, where: str = "") -> str:
    """Describe the key of a rejected command, and the reason for the rejection."""
    return f"key {text_of(key)!r}: {where}{text_of(reason)}"


def text_of(answer: bytes) -> str:
    """Return a response as text for error messages. Keys and values may contain any bytes."""
    return answer.decode("utf-8", "backslashreplace")


def _chunks(handle: RedisHandle) -> Iterator[tuple[int, int, int]]:
    """List each chunk's slot, number and weight. Within a slot, list the chunks in the order in which they are applied."""
    for slot, chunks, weight in handle.groups:
        for number in range(chunks):
            yield slot, number, weight // chunks


def _may_pass(answer: Any) -> bool:
    """Return whether a retry may get a different response.

    The error may come from Redis itself or from the rehearsed command.
    """
    if isinstance(answer, Exception):
        return is_transient(answer)
    return bool(answer and answer[2] and is_transient_text(text_of(answer[2])))
