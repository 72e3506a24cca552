"""Implement the staged committer's steps for Redis. The control record and the list of slices share a hash slot."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from twopc import control
from twopc.sinks.redis import keys, scripts
from twopc.sinks.redis.check import Check, refused, text_of
from twopc.sinks.redis.client import Call
from twopc.sinks.redis.errors import is_transient, is_transient_text
from twopc.sinks.redis.keys import RedisHandle
from twopc.sinks.staged.client import checked
from twopc.sinks.staged.committer import StagedCommitter
from twopc.sinks.staged.slices import SliceState, combine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from twopc.control import Control
    from twopc.observation import Observation
    from twopc.sinks.redis.client import RedisClient
    from twopc.sinks.redis.scripts import Script
    from twopc.sinks.redis.settings import RedisSettings
    from twopc.sinks.staged.client import StoreClient

#: A swept slice stays in the list for this long, so that the driver also sweeps later writes by the slice's task.
_LISTED_MS: Final = 3_600_000
#: This character comes before the sweep time in the list of slices.
_SWEPT_AT: Final = "@"
#: The advice if a command passed the check before the decision, but now fails.
_CHANGED: Final = (
    "Another client has changed the key since the check before the decision: correct the key's value, or delete or rename the "
    "key"
)
#: The blocker if no chunk has failed, but some chunks were not sent again before the timeout.
_TOO_SLOW: Final = "Redis is too slow to apply every chunk within timeout_ms"


class RedisCommitter(StagedCommitter[RedisHandle]):
    """See :class:`StagedCommitter`."""

    _client: RedisClient

    def __init__(self, settings: RedisSettings) -> None:
        client = settings.create_client()
        super().__init__(settings, client)
        self._is_cluster = settings.cluster
        self._control_key, self._control_slot = keys.control(settings.name), keys.slot_of_control(settings.name)
        self._check = Check(client, settings.name)

    def binding(self) -> dict[str, str]:
        """See :class:`StagedCommitter`."""
        return {**super().binding(), "cluster": str(self._is_cluster).lower()}

    def observed(
        self, step: StoreClient[Call], record: Control, decided: Sequence[RedisHandle], scan_start: Mapping[str, Any]
    ) -> Observation:
        """See :class:`StagedCommitter`."""
        found = super().observed(step, record, decided, scan_start)
        return replace(found, bound={**found.bound, "cluster": str(self._is_cluster).lower()})

    def load(self, step: StoreClient[Call]) -> bytes | None:
        """See :class:`ControlCommitter`."""
        stored: bytes | None = step.execute_one(Call(self._control_slot, ("HGET", self._control_key, "record")))
        return stored

    def swap(self, step: StoreClient[Call], old: bytes | None, new: bytes) -> bool:
        """See :class:`ControlCommitter`."""
        words = (self._control_key, old or b"", new)
        before, after = control.decode(old), control.decode(new)
        # On a single server, the decision does not have to be durable, because the proof of its rows waits for all earlier
        # writes, and unproven rows may be applied again. In a cluster, the rows may be on other servers.
        durable = self._is_cluster or (before.driver_epoch, before.version) != (after.driver_epoch, after.version)
        return bool(step.execute_one(Call(self._control_slot, words, scripts.SWAP, keys=1, durable=durable)))

    def _describe(self) -> Sequence[Mapping[str, Any]]:
        return self._client.server_info()

    def _checksums(self, handles: Sequence[RedisHandle]) -> dict[RedisHandle, str | Exception]:
        with self._try("checking the staged rows"):
            return self._check.checksums(handles)

    def _look(self, handles: Sequence[RedisHandle], version: int, *, durable: bool) -> dict[RedisHandle, SliceState]:
        return {handle: combine(states) for handle, states in self._slots(handles, version, durable=durable).items()}

    def _slots(
        self, handles: Sequence[RedisHandle], version: int, *, durable: bool
    ) -> dict[RedisHandle, list[SliceState]]:
        calls = [
            self._call(scripts.LOOK, slot, handle, version, chunks, int(durable), durable=durable)
            for handle in handles
            for slot, chunks, _ in handle.groups
        ]
        answers = self._client.execute(calls)
        self._unanswered = next((one for one in answers if isinstance(one, Exception)), self._unanswered)
        states = iter(
            SliceState.UNANSWERED if isinstance(one, Exception) else SliceState(one.decode()) for one in answers
        )
        return {handle: [next(states) for _ in handle.groups] for handle in handles}

    def _apply(self, handle: RedisHandle, version: int) -> list[str]:
        calls = [
            self._call(scripts.APPLY, slot, handle, version, chunk, weight=weight // chunks)
            for chunk in range(max(chunks for _, chunks, _ in handle.groups))
            for slot, chunks, weight in handle.groups
            if chunk < chunks
        ]
        is_blocked = False

        def retry_if(answer: Any) -> bool:
            nonlocal is_blocked
            if not _has_failed(answer):
                # An earlier chunk has no response yet. It will receive one unless an error blocks the slice.
                return not is_blocked and bool(answer[0] == b"EARLIER")
            is_transient_now = _may_pass(answer)
            is_blocked = is_blocked or not is_transient_now
            return is_transient_now

        answers = self._client.execute(calls, retry_if=retry_if)
        # A retry may have failed each time until the timeout, so only the last responses show what blocks the slice.
        blockers = {self._blocker(answer) for answer in answers if _has_failed(answer)}
        if not blockers and [b"EARLIER"] in answers:
            return [_TOO_SLOW]
        return sorted(blockers)

    def _is_ordered(self, handle: RedisHandle) -> bool:
        # Several tasks may write the same key, so the last task's value must win, and lists and streams must keep the order
        # of the tasks.
        del handle
        return True

    def _blocker(self, failed: Any) -> str:
        """For a command that failed after the decision, describe the key, the reason, and what to do."""
        if isinstance(failed, Exception):
            return self.reason(failed)
        _, key, reason = failed
        what, text = refused(key, reason), text_of(reason)
        if remedy := self._client.remedy(text):
            return f"{what}. {remedy[1]}"
        return what.removesuffix(".") if is_transient_text(text) else f"{what}. {_CHANGED}"

    def _tombstone(self, handle: RedisHandle, version: int) -> bool:
        calls = [self._call(scripts.TOMBSTONE, slot, handle, version, durable=True) for slot in handle.slots]
        return all(answer == b"LOST" for answer in self._client.execute(calls))

    def _call(self, script: Script, slot: int, handle: RedisHandle, version: int, *more: int, **how: Any) -> Call:
        applied, staged = keys.applied(self.name, slot), keys.staged(self.name, slot, handle.entry)
        return Call(slot, (applied, staged, version, handle.uuid, *more), script, keys=2, **how)

    def _discard(self, handles: Sequence[RedisHandle]) -> None:
        self._execute([call for one in handles for call in keys.unstage(self.name, one.entry, one.slots)])

    def _forget(self, handles: Sequence[RedisHandle]) -> None:
        # The script that applied a chunk has removed it.
        self._execute([keys.remove_entry(self.name, handle.entry) for handle in handles])

    def _entries(self) -> dict[str, str]:
        listed = self._client.execute_one(Call(keys.slot_of_control(self.name), ("HGETALL", keys.slices(self.name))))
        return {entry.decode(): value.decode() for entry, value in listed.items()}

    def _unswept(self) -> Iterable[str]:
        return [entry for entry, value in self._entries().items() if _SWEPT_AT not in value]

    def _sweep(self, orphans: Mapping[str, str]) -> int:
        self._execute([call for entry, value in orphans.items() for call in self._sweep_one(entry, value)])
        return sum(_SWEPT_AT not in value for value in orphans.values())

    def _sweep_one(self, entry: str, value: str) -> Iterator[Call]:
        """Remove an orphan's chunks now, and its entry an hour later."""
        listed, _, swept_at_ms = value.partition(_SWEPT_AT)
        now_ms = time.time_ns() // 1_000_000
        remove = keys.unstage(self.name, entry, [int(slot) for slot in listed.split(",") if slot])
        if swept_at_ms and int(swept_at_ms) < now_ms - _LISTED_MS:
            yield from remove
            return
        yield from remove[:-1]
        if not swept_at_ms:
            words = ("HSET", keys.slices(self.name), entry, f"{listed}{_SWEPT_AT}{now_ms}")
            yield Call(keys.slot_of_control(self.name), words)

    def _execute(self, calls: Sequence[Call]) -> None:
        checked(self._client.execute(calls))


def _has_failed(answer: Any) -> bool:
    """Return whether the response to a chunk is an error, or the error of one of the chunk's commands."""
    return isinstance(answer, Exception) or answer[0] == b"FAILED"


def _may_pass(failed: Any) -> bool:
    """Return whether a retry may clear the error."""
    return is_transient(failed) if isinstance(failed, Exception) else is_transient_text(text_of(failed[2]))
