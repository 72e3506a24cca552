"""The executor's side of a Redis sink: a task's commands become an immutable slice that nobody reads."""

from __future__ import annotations

import hashlib
import logging
import uuid
from typing import TYPE_CHECKING, Final

from sinks.redis import keys
from sinks.redis.calls import Call
from sinks.redis.chunks import by_slot, cut, fold
from sinks.redis.errors import translate
from sinks.redis.handle import RedisHandle
from sinks.staged.slices import entry_of
from twopc.crash_points import crash_point
from twopc.errors import BadRecordError
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from sinks.redis.chunks import Chunk, Commands
    from sinks.redis.settings import RedisSettings
    from twopc.attempt import TaskAttempt

logger = logging.getLogger(__name__)

_BYTES_PER_WEIGHT: Final = 256
#: Every server takes an argument of this size, whatever its proto-max-bulk-len.
_ALWAYS_TAKEN: Final = 1_000_000


class RedisWriter(SinkWriter[RedisHandle]):
    """See :class:`SinkWriter`. Rows have the DataFrame's own columns; the mapping picks those it needs."""

    def __init__(self, task: TaskAttempt, settings: RedisSettings) -> None:
        self._settings = settings
        self._driver_epoch = task.driver_epoch
        self._uuid = uuid.uuid4().hex
        self._entry = entry_of(task.driver_epoch, self._uuid)
        self._client = settings.create_client()
        self._rows = 0
        self._groups: dict[int, list[int]] = {}  # hash slot -> chunks, weight
        self._digests: dict[int, list[str]] = {}
        self._largest_bytes = _ALWAYS_TAKEN

    def begin_transaction(self) -> None:
        """See :class:`SinkWriter`. The sweep finds a slice only by its entry, so the entry comes first."""
        self._stage([self._register()])
        crash_point("task.began")

    def write(self, rows: pa.RecordBatch) -> None:
        """See :class:`SinkWriter`. Rows are staged at once: memory is that of one Arrow batch."""
        groups = by_slot(self._settings.mapping.encode(rows), cluster=self._settings.cluster)
        if not groups.keys() <= self._groups.keys():
            for slot in groups:
                self._groups.setdefault(slot, [0, 0])
            if self._settings.cluster:
                self._stage([self._register()])
        self._stage([call for slot, commands in groups.items() for call in self._chunks(slot, commands)])
        self._rows += rows.num_rows

    def pre_commit(self) -> RedisHandle:
        """See :class:`SinkWriter`: Redis has acknowledged every chunk already."""
        crash_point("task.written")
        crash_point("task.flushed")
        groups = tuple((slot, chunks, weight) for slot, (chunks, weight) in sorted(self._groups.items()))
        return RedisHandle(
            uuid=self._uuid,
            driver_epoch=self._driver_epoch,
            groups=groups,
            rows=self._rows,
            checksum=fold(digest for slot, _, _ in groups for digest in self._digests[slot]),
        )

    def abort(self) -> None:
        """See :class:`SinkWriter`."""
        calls = keys.unstage(self._settings.name, self._entry, self._groups)
        answers = self._client.execute(calls, retry_if=lambda _: False)
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        if failed:
            logger.warning(
                "sink %r: slice %s was not removed; the driver's sweep will remove it. No data is at risk: %s",
                self._settings.name,
                self._entry,
                failed[0],
            )

    def close(self) -> None:
        """See :class:`SinkWriter`."""
        super().close()
        self._client.close()

    def _register(self) -> Call:
        slots = ",".join(map(str, self._groups)) if self._settings.cluster else str(keys.NO_SLOT)
        name = self._settings.name
        return Call(keys.slot_of_control(name), ("HSET", keys.slices(name), self._entry, slots), durable=True)

    def _chunks(self, slot: int, commands: Commands) -> list[Call]:
        calls = []
        key = keys.staged(self._settings.name, slot, self._entry)
        counts, digests = self._groups[slot], self._digests.setdefault(slot, [])
        for chunk in cut(commands, max_commands=self._settings.chunk_rows, max_bytes=self._settings.chunk_bytes):
            self._require_fits(chunk)
            weight = max(chunk.commands, len(chunk.data) // _BYTES_PER_WEIGHT)
            calls.append(Call(slot, ("HSET", key, counts[0], chunk.data), weight=weight, durable=True))
            counts[0] += 1
            counts[1] += weight
            digests.append(hashlib.sha1(chunk.data, usedforsecurity=False).hexdigest())
        return calls

    def _require_fits(self, chunk: Chunk) -> None:
        if len(chunk.data) <= self._largest_bytes:
            return
        # The server hangs up on an argument that is too large, without an answer: read its limit first.
        self._largest_bytes = self._client.largest_argument_bytes()
        if len(chunk.data) > self._largest_bytes:
            raise BadRecordError(
                f"sink {self._settings.name!r}: a row has {len(chunk.data)} bytes with its key; Redis takes at most "
                f"{self._largest_bytes}. Raise its proto-max-bulk-len, or make the row smaller"
            )

    def _stage(self, calls: list[Call]) -> None:
        for answer in self._client.execute(calls):
            if isinstance(answer, Exception):
                raise translate(answer, f"sink {self._settings.name!r}, staging slice {self._entry}") from answer
