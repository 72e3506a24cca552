"""The executor's side of a Redis sink: a task's commands become an immutable slice that nobody reads."""

from __future__ import annotations

import hashlib
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sinks.redis import keys
from sinks.redis.calls import Call
from sinks.redis.chunks import by_slot, cut
from sinks.redis.errors import translate
from twopc.crash_points import crash_point
from twopc.errors import BadRecordError
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from sinks.redis.chunks import Chunk, Commands
    from sinks.redis.sink import RedisSink
    from twopc.attempt import TaskAttempt

logger = logging.getLogger(__name__)

_BYTES_PER_WEIGHT: Final = 256
#: Every server takes a word of this size, whatever its proto-max-bulk-len.
_ALWAYS_TAKEN: Final = 1_000_000


@dataclass(frozen=True)
class RedisHandle:
    """A prepared slice.

    Attributes:
        uuid: names it for ever.
        driver_epoch: of the sink, when it was written.
        groups: for each slot its number (-1 without a cluster), its chunks, and about how many small commands they are
            worth, by count or size: by this the driver measures how much it sends at once.
        rows: rows of the task.
        checksum: SHA-1 over the chunks' SHA-1, slot by slot.
    """

    uuid: str
    driver_epoch: int
    groups: tuple[tuple[int, int, int], ...]
    rows: int
    checksum: str

    @property
    def entry(self) -> str:
        """Its field among the sink's slices."""
        return f"{self.driver_epoch}:{self.uuid}"

    @property
    def transaction(self) -> str:
        """See :class:`Handle`."""
        return f"slice {self.entry} ({self.rows} rows)"


class RedisWriter(SinkWriter[RedisHandle]):
    """See :class:`SinkWriter`. Rows have the DataFrame's own columns; the sink's mapping names those it takes."""

    def __init__(self, task: TaskAttempt, sink: RedisSink) -> None:
        self._sink = sink
        self._driver_epoch = task.driver_epoch
        self._uuid = uuid.uuid4().hex
        self._entry = f"{task.driver_epoch}:{self._uuid}"
        self._link = sink.link()
        self._rows = 0
        self._groups: dict[int, list[int]] = {}  # slot -> chunks, weight
        self._digests: dict[int, list[str]] = {}
        self._largest_bytes = _ALWAYS_TAKEN

    def begin_transaction(self) -> None:
        """See :class:`SinkWriter`. The entry comes first: the sweep finds a slice only by it."""
        self._stage([self._register()])
        crash_point("task.began")

    def write(self, rows: pa.RecordBatch) -> None:
        """See :class:`SinkWriter`. Nothing is kept: memory is that of one batch."""
        groups = by_slot(self._sink.mapping.encode(rows), cluster=self._sink.cluster)
        if not groups.keys() <= self._groups.keys():
            for slot in groups:
                self._groups.setdefault(slot, [0, 0])
            if self._sink.cluster:
                self._stage([self._register()])
        self._stage([call for slot, commands in groups.items() for call in self._chunks(slot, commands)])
        self._rows += rows.num_rows

    def pre_commit(self) -> RedisHandle:
        """See :class:`SinkWriter`: every chunk is acknowledged already."""
        crash_point("task.written")
        crash_point("task.flushed")
        groups = tuple((slot, chunks, weight) for slot, (chunks, weight) in sorted(self._groups.items()))
        checksum = fold(digest for slot, _, _ in groups for digest in self._digests[slot])
        return RedisHandle(self._uuid, self._driver_epoch, groups, self._rows, checksum)

    def abort(self) -> None:
        """See :class:`SinkWriter`."""
        answers = self._link.ask(unstage(self._sink.name, self._entry, self._groups), again=lambda _: False)
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        if failed:
            logger.warning("slice %s is left to the driver's sweep: %s", self._entry, failed[0])

    def close(self) -> None:
        """See :class:`SinkWriter`."""
        super().close()
        self._link.close()

    def _register(self) -> Call:
        slots = ",".join(map(str, self._groups)) if self._sink.cluster else str(keys.NO_SLOT)
        name = self._sink.name
        return Call(keys.slot_of_control(name), ("HSET", keys.slices(name), self._entry, slots), durable=True)

    def _chunks(self, slot: int, commands: Commands) -> list[Call]:
        calls = []
        key = keys.staged(self._sink.name, slot, self._entry)
        counts, digests = self._groups[slot], self._digests.setdefault(slot, [])
        for chunk in cut(commands, max_commands=self._sink.chunk_rows, max_bytes=self._sink.chunk_bytes):
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
        # Asked now, because the server does not answer to a word that is too large: it hangs up.
        self._largest_bytes = self._link.largest_word_bytes()
        if len(chunk.data) > self._largest_bytes:
            raise BadRecordError(
                f"sink {self._sink.name!r}: a row has {len(chunk.data)} bytes with its key, Redis takes at most "
                f"{self._largest_bytes}: raise its proto-max-bulk-len, or make the row smaller"
            )

    def _stage(self, calls: list[Call]) -> None:
        for answer in self._link.ask(calls):
            if isinstance(answer, Exception):
                raise translate(answer, f"sink {self._sink.name!r}, staging slice {self._entry}") from answer


def fold(digests: Any) -> str:
    """One checksum of many."""
    return hashlib.sha1("".join(digests).encode(), usedforsecurity=False).hexdigest()


def unstage(sink: str, entry: str, slots: Any) -> list[Call]:
    """What removes a slice, the entry that it is found by last."""
    calls = [Call(slot, ("UNLINK", keys.staged(sink, slot, entry))) for slot in slots]
    return [*calls, forget_entry(sink, entry)]


def forget_entry(sink: str, entry: str) -> Call:
    """What takes a slice from the list that the sweep looks through."""
    return Call(keys.slot_of_control(sink), ("HDEL", keys.slices(sink), entry))
