"""Stage a task's commands in Redis, in chunks for each hash slot."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import BadRecordError
from twopc.sinks.redis import keys
from twopc.sinks.redis.chunks import by_slot, cut, fold
from twopc.sinks.redis.client import Call
from twopc.sinks.redis.keys import RedisHandle
from twopc.sinks.staged.writer import StagedWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from twopc.attempt import TaskAttempt
    from twopc.sinks.redis.chunks import Commands
    from twopc.sinks.redis.client import RedisClient
    from twopc.sinks.redis.settings import RedisSettings

_BYTES_PER_WEIGHT: Final = 256
#: Every server accepts an argument of this size, with any proto-max-bulk-len.
_ALWAYS_TAKEN: Final = 1_000_000


@dataclass
class _Group:
    weight: int = 0
    digests: list[str] = field(default_factory=list)  # one for each chunk


class RedisWriter(StagedWriter[RedisHandle]):
    """See :class:`StagedWriter`."""

    _client: RedisClient

    def __init__(self, task: TaskAttempt, settings: RedisSettings) -> None:
        super().__init__(task, settings.name, settings.create_client())
        self._settings = settings
        self._groups: dict[int, _Group] = {}  # by hash slot
        self._largest_bytes = _ALWAYS_TAKEN

    def begin_transaction(self) -> None:
        """See :class:`StagedWriter`."""
        slots = ",".join(map(str, self._groups)) if self._settings.cluster else str(keys.NO_SLOT)
        words = ("HSET", keys.slices(self._sink), self._entry, slots)
        self._execute([Call(keys.slot_of_control(self._sink), words, durable=True)], "listing")

    def write(self, rows: pa.RecordBatch) -> None:
        """See :class:`StagedWriter`."""
        commands = by_slot(self._settings.mapping.encode(rows), cluster=self._settings.cluster)
        if new := commands.keys() - self._groups.keys():
            self._groups |= {slot: _Group() for slot in new}
            if self._settings.cluster:
                self.begin_transaction()
        calls = [call for slot, mine in commands.items() for call in self._chunks(slot, mine)]
        self._execute(calls, "staging")

    def pre_commit(self) -> RedisHandle:
        """See :class:`StagedWriter`."""
        groups = sorted(self._groups.items())
        return RedisHandle(
            uuid=self._uuid,
            driver_epoch=self._task.driver_epoch,
            groups=tuple((slot, len(group.digests), group.weight) for slot, group in groups),
            rows=self.rows,
            checksum=fold(digest for _, group in groups for digest in group.digests),
        )

    def _remove(self) -> list[Any]:
        return self._client.execute(keys.unstage(self._sink, self._entry, self._groups), retry_if=lambda _: False)

    def _chunks(self, slot: int, commands: Commands) -> Iterator[Call]:
        key, group = keys.staged(self._sink, slot, self._entry), self._groups[slot]
        for count, data in cut(commands, max_commands=self._settings.chunk_rows, max_bytes=self._settings.chunk_bytes):
            self._require_fits(data)
            weight = max(count, len(data) // _BYTES_PER_WEIGHT)
            yield Call(slot, ("HSET", key, len(group.digests), data), weight=weight, durable=True)
            group.weight += weight
            group.digests.append(hashlib.sha1(data, usedforsecurity=False).hexdigest())

    def _require_fits(self, data: bytes) -> None:
        if len(data) <= self._largest_bytes:
            return
        # The server closes the connection without a response if an argument is too large, so read the server's limit first.
        self._largest_bytes = self._client.largest_argument_bytes()
        if len(data) > self._largest_bytes:
            raise BadRecordError(
                f"sink {self._sink!r}: a row takes up {len(data)} bytes including its key, but Redis accepts at most "
                f"{self._largest_bytes}. Raise Redis's proto-max-bulk-len, or make the row smaller"
            )
