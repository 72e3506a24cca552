"""The driver's side of a Redis sink: the steps of the staged committer. Control record and list of slices share a hash slot."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from sinks.redis import apply, keys, scripts
from sinks.redis.calls import FAILURES, Call
from sinks.redis.chunks import fold
from sinks.redis.errors import translate
from sinks.redis.handle import RedisHandle
from sinks.redis.preflight import objections
from sinks.staged.committer import StagedCommitter, first_failure
from sinks.staged.control import FORMER_NAMES, Control, decode_control, fenced
from sinks.staged.slices import combine
from twopc.errors import BadRecordError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sinks.redis.scripts import Script
    from sinks.redis.settings import RedisSettings
    from sinks.staged.slices import SliceState
    from twopc.attempt import Claim

#: How long a swept slice stays listed, so that what its task writes after the sweep is swept too.
_LISTED_MS: Final = 3_600_000
_CONTROL_FIELDS: Final = (*Control.__struct_fields__, *FORMER_NAMES)


class RedisCommitter(StagedCommitter[RedisHandle]):
    """See :class:`StagedCommitter`."""

    system = "Redis"
    failures = FAILURES
    _translate = staticmethod(translate)

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings.name)
        self._settings = settings
        self._client = settings.create_client()
        self._control = keys.control(settings.name)
        self._slot = keys.slot_of_control(settings.name)

    def binding(self) -> dict[str, str]:
        """See :class:`StagedCommitter`."""
        return {**super().binding(), "cluster": str(self._settings.cluster).lower()}

    def close(self) -> None:
        """See :class:`StagedCommitter`."""
        self._client.close()

    def _objections(self) -> Iterator[tuple[bool, str]]:
        for info in self._client.server_info():
            yield from objections(self._settings, info)

    def _read_control(self) -> Control:
        # Records of version 0.1 are read too; the script ACQUIRE renames their fields.
        values = self._one(Call(self._slot, ("HMGET", self._control, *_CONTROL_FIELDS)))
        found = zip(_CONTROL_FIELDS, values, strict=True)
        return decode_control({name: value.decode() for name, value in found if value is not None}, Control)

    def _acquire(self, claim: Claim, seen: int) -> int:
        return self._owned(scripts.ACQUIRE, claim.run, seen, claim.query_id, uuid.uuid4().hex)

    def _reserve(self, run: str, above: int) -> int:
        return self._owned(scripts.RESERVE, run, time.time_ns() // 1_000_000, above)

    def _checksums(self, handles: Sequence[RedisHandle]) -> dict[RedisHandle, str | Exception]:
        # The same script checks that each command fits what its key holds.
        calls = [call for handle in handles for call in self._checks(handle)]
        answers = iter(self._client.execute(calls))
        return {
            handle: self._checksum([next(answers) for _, chunks, _ in handle.groups for _ in range(chunks)])
            for handle in handles
        }

    def _record_decision(self, run: str, handles: Sequence[RedisHandle], version: int) -> None:
        del handles
        # Not durable: the proof waits for the replicas, and what is only applied may be applied again.
        self._owned(scripts.RECORD_DECISION, run, version, durable=False)

    def _look(self, handles: Sequence[RedisHandle], version: int, *, durable: bool) -> dict[RedisHandle, SliceState]:
        found = apply.look(self._client, self.name, handles, version, durable=durable)
        return {handle: combine(states) for handle, states in found.items()}

    def _apply(self, handle: RedisHandle, version: int) -> list[str]:
        return apply.apply(self._client, self.name, handle, version)

    def _tombstone(self, handle: RedisHandle, version: int) -> bool:
        return apply.tombstone(self._client, self.name, handle, version)

    def _discard(self, handles: Sequence[RedisHandle]) -> None:
        self._execute([call for one in handles for call in keys.unstage(self.name, one.entry, one.slots)])

    def _forget(self, handles: Sequence[RedisHandle]) -> None:
        # The step that applied a chunk has removed it.
        self._execute([keys.remove_entry(self.name, handle.entry) for handle in handles])

    def _entries(self) -> dict[str, str]:
        listed = self._one(Call(self._slot, ("HGETALL", keys.slices(self.name))))
        return {entry.decode(): value.decode() for entry, value in listed.items()}

    def _sweep(self, orphans: Mapping[str, str]) -> None:
        self._execute([call for entry, value in orphans.items() for call in self._sweep_one(entry, value)])

    def _checks(self, handle: RedisHandle) -> Iterator[Call]:
        for slot, chunks, weight in handle.groups:
            key = keys.staged(self.name, slot, handle.entry)
            for chunk in range(chunks):
                yield Call(slot, (key, chunk), scripts.CHECK, keys=1, weight=weight // chunks)

    def _checksum(self, answers: Sequence[Any]) -> str | Exception:
        digests = []
        for answer in answers:
            if isinstance(answer, Exception):
                return answer
            if len(answer) > 1:
                key = answer[1].decode("utf-8", "backslashreplace")
                raise BadRecordError(
                    f"sink {self.name!r}: key {key!r}: {answer[2].decode()}. Nothing was applied. Delete or rename the key, "
                    "or give the mapping another one"
                )
            digests += [answer[0].decode()] if answer else []  # empty: the chunk is gone
        return fold(digests)

    def _sweep_one(self, entry: str, value: str) -> Iterator[Call]:
        """Remove an orphan's chunks now, and its entry an hour later."""
        listed, _, swept_at_ms = value.partition("@")
        now_ms = time.time_ns() // 1_000_000
        remove = keys.unstage(self.name, entry, [int(slot) for slot in listed.split(",") if slot])
        if swept_at_ms and int(swept_at_ms) < now_ms - _LISTED_MS:
            yield from remove
            return
        yield from remove[:-1]
        if not swept_at_ms:
            yield Call(self._slot, ("HSET", keys.slices(self.name), entry, f"{listed}@{now_ms}"))

    def _owned(self, script: Script, *arguments: str | int, durable: bool = True) -> int:
        """Run a script that answers 0 where somebody else owns the sink."""
        answer = self._one(Call(self._slot, (self._control, *arguments), script, keys=1, durable=durable))
        if not answer:
            raise fenced(self.name)
        return int(answer)

    def _one(self, call: Call) -> Any:
        return self._execute([call])[0]

    def _execute(self, calls: Sequence[Call]) -> list[Any]:
        answers = self._client.execute(calls)
        first_failure(answers)
        return answers
