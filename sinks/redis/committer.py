"""The driver's side of a Redis sink: take over, confirm, apply and prove, sweep."""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from sinks.redis import keys, scripts
from sinks.redis.apply import apply, bury, look
from sinks.redis.calls import FAILURES, Call
from sinks.redis.errors import translate
from sinks.redis.preflight import require_usable
from sinks.redis.writer import RedisHandle, fold, forget_entry, unstage
from twopc.committer import SinkCommitter
from twopc.crash_points import crash_point
from twopc.errors import BadRecordError, FencedError, RetriableError
from twopc.handle import Evidence

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sinks.redis.sink import RedisSink
    from twopc.attempt import Claim

logger = logging.getLogger(__name__)

_WHOLE: Final = frozenset({"PREPARED", "APPLYING", "COMMITTED"})
#: How long a swept slice stays listed, so that what its task still writes after the sweep is swept, too.
_LISTED_MS: Final = 3_600_000


class RedisCommitter(SinkCommitter[RedisHandle]):
    """See :class:`SinkCommitter`."""

    def __init__(self, sink: RedisSink) -> None:
        self._sink = sink
        self._name = sink.name
        self._link = sink.link()
        self._control = keys.control(sink.name)
        self._slot = keys.slot_of_control(sink.name)
        self._run = ""
        self._seen: str | None = None
        self._driver_epoch = -1
        self._last_version = 0
        self._blockers: list[str] = []

    def binding(self) -> Mapping[str, str]:
        """See :class:`SinkCommitter`: the sink's id in this Redis, which goes where its data goes."""
        found = self._ask_one(("HGET", self._control, "id"), "reading the sink's id")
        return {"id": (found or b"").decode(), "cluster": str(self._sink.cluster).lower()}

    def inspect(self) -> str | None:
        """See :class:`SinkCommitter`: the server's settings, and who drove the sink last."""
        try:
            require_usable(self._sink, self._link.facts())
        except FAILURES as error:
            raise translate(error, f"sink {self._name!r}, reading the server's settings") from error
        last, driver_epoch = self._ask_one(("HMGET", self._control, "lineage", "incarnation"), "reading who drove it")
        # Once: a later look could show a successor, whom a repeated take-over must not throw out.
        if self._seen is None:
            self._seen = (driver_epoch or b"0").decode()
        return last.decode() if last else None

    def has_newer_decision(self, scan_start: Mapping[str, Any]) -> bool:
        """See :class:`SinkCommitter`."""
        decided = self._ask_one(("HGET", self._control, "decided"), "reading its newest decision")
        return int(decided or 0) > int(scan_start.get("base", 0))

    def acquire(self, claim: Claim) -> int:
        """See :class:`SinkCommitter`."""
        if self._seen is None:
            raise AssertionError("inspect comes first")
        taken = self._ask_one(
            (self._control, claim.run, self._seen, claim.query_id, uuid.uuid4().hex),
            "taking over",
            script=scripts.ACQUIRE,
        )
        if not taken:
            raise self._fenced()
        self._run = claim.run
        if taken != self._driver_epoch:
            self._driver_epoch = int(taken)
            crash_point("driver.fenced")
        return self._driver_epoch

    def begin_attempt(self) -> dict[str, Any]:
        """See :class:`SinkCommitter`: the attempt's version, above every earlier one and the time in ms."""
        now_ms = time.time_ns() // 1_000_000
        version = self._ask_one(
            (self._control, self._run, now_ms, self._last_version),
            "beginning an attempt",
            script=scripts.RESERVE,
        )
        if not version:
            raise self._fenced()
        return {"base": int(version)}

    def confirm(self, handles: Sequence[RedisHandle], age_ms: float) -> None:
        """See :class:`SinkCommitter`: every chunk is there, as it was written, and its command fits what its keys hold."""
        del age_ms  # what is staged does not expire
        calls = [call for handle in handles for call in self._checks(handle)]
        answers = iter(self._link.ask(calls))
        for handle in handles:
            digests = []
            for _ in range(sum(chunks for _, chunks, _ in handle.groups)):
                answer = next(answers)
                if isinstance(answer, Exception):
                    raise translate(answer, f"sink {self._name!r}, confirming {handle.transaction}") from answer
                if len(answer) > 1:
                    raise BadRecordError(
                        f"sink {self._name!r}: key {_shown(answer[1])}: {answer[2].decode()}. Delete or rename the key, or "
                        "give the mapping another one; nothing was applied"
                    )
                digests += [answer[0].decode()] if answer else []
            if fold(digests) != handle.checksum:
                raise RetriableError(f"{handle.transaction} cannot be decided: it is not whole any more")

    def commit(self, handles: Sequence[RedisHandle], scan_start: Mapping[str, Any]) -> dict[RedisHandle, Evidence]:
        """See :class:`SinkCommitter`: one slice after the other, so that a replay meets them in the same order."""
        version = int(scan_start["base"])
        self._blockers = []
        if self._note(version):
            self._apply(handles, version)
        found = self.evidence(handles, scan_start)
        self._link.ask([forget_entry(self._name, h.entry) for h, e in found.items() if e is Evidence.COMMITTED])
        return found

    def blockers(self) -> Sequence[str]:
        """See :class:`SinkCommitter`."""
        return self._blockers

    def abort(self, handles: Sequence[RedisHandle]) -> None:
        """See :class:`SinkCommitter`."""
        calls = [
            call
            for handle in handles
            for call in unstage(self._name, handle.entry, [slot for slot, _, _ in handle.groups])
        ]
        self._report("aborting", self._link.ask(calls))

    def evidence(self, handles: Sequence[RedisHandle], scan_start: Mapping[str, Any]) -> dict[RedisHandle, Evidence]:
        """See :class:`SinkCommitter`: by the markers, which are written in the same step as the data."""
        version = int(scan_start["base"])
        states = look(self._link, self._name, handles, version, durable=True)
        return {handle: self._judge(handle, set(states[handle]), version) for handle in handles}

    def initialize_state(
        self, decided: Sequence[RedisHandle], scan_start: Mapping[str, Any]
    ) -> Mapping[RedisHandle, Evidence]:
        """See :class:`SinkCommitter`; later versions go above the last decision's, whatever the clock says."""
        self._last_version = int(scan_start.get("base", 0))
        return super().initialize_state(decided, scan_start)

    def recover_and_abort(self, decided: Collection[RedisHandle]) -> None:
        """See :class:`SinkCommitter`: slices up to one's own incarnation that nobody has decided."""
        key = keys.slices(self._name)
        [listed] = self._link.ask([Call(self._slot, ("HGETALL", key))])
        if isinstance(listed, Exception):
            self._report("sweeping", [listed])
            return
        spared = {handle.entry for handle in decided}
        entries = {entry.decode(): value.decode() for entry, value in listed.items()}
        orphans = {
            e: v for e, v in entries.items() if e not in spared and int(e.partition(":")[0]) <= self._driver_epoch
        }
        if not orphans:
            return
        crash_point("driver.sweeping")
        self._report("sweeping", self._link.ask([call for entry in orphans.items() for call in self._sweep(*entry)]))

    def close(self) -> None:
        """See :class:`SinkCommitter`."""
        self._link.close()

    # -- the steps' small parts ----------------------------------------------------------------------------------------

    def _note(self, version: int) -> bool:
        """Note what is decided before any of it is applied: who starts from an older copy of the checkpoint must see it."""
        [noted] = self._link.ask([Call(self._slot, (self._control, self._run, version), scripts.NOTE, keys=1)])
        if noted == 0:
            raise self._fenced()
        if isinstance(noted, Exception):
            self._blockers.append(f"sink {self._name!r}: Redis does not answer: {noted}")
        return not isinstance(noted, Exception)

    def _apply(self, handles: Sequence[RedisHandle], version: int) -> None:
        states = look(self._link, self._name, handles, version)
        for handle in handles:
            # A slice of which something is missing is not applied in part: it may be proven lost and be written anew.
            if _WHOLE.issuperset(states[handle]) and set(states[handle]) != {"COMMITTED"}:
                for failure in apply(self._link, self._name, handle, version):
                    self._blockers.append(f"sink {self._name!r}, {handle.transaction} is not applied: {failure}")
            crash_point("driver.committing")

    def _judge(self, handle: RedisHandle, states: set[str], version: int) -> Evidence:
        if states == {"COMMITTED"}:
            return Evidence.COMMITTED
        if "STALE" in states:
            self._require_driving()
            self._blockers.append(
                f"sink {self._name!r}, {handle.transaction}: Redis has had a later decision than version {version}, so this "
                "checkpoint is older than its output"
            )
        elif "LOST" in states and states <= {"LOST", "PREPARED"}:
            # What is left of it goes first: a paused driver could still apply that when it wakes.
            if bury(self._link, self._name, handle, version):
                return Evidence.ABORTED
        elif states & {"LOST", "TORN"}:
            self._blockers.append(f"sink {self._name!r}, {handle.transaction} is applied in part, and the rest is gone")
        return Evidence.UNKNOWN

    def _require_driving(self) -> None:
        if self._ask_one(("HGET", self._control, "run"), "asking who drives") != self._run.encode():
            raise self._fenced()

    def _checks(self, handle: RedisHandle) -> Iterator[Call]:
        for slot, chunks, weight in handle.groups:
            key = keys.staged(self._name, slot, handle.entry)
            for chunk in range(chunks):
                yield Call(slot, (key, chunk), scripts.CHECK, keys=1, weight=weight // chunks)

    def _sweep(self, entry: str, value: str) -> Iterator[Call]:
        listed, _, swept_at_ms = value.partition("@")
        now_ms = time.time_ns() // 1_000_000
        slots = [int(slot) for slot in listed.split(",") if slot]
        remove = unstage(self._name, entry, slots)
        if swept_at_ms and int(swept_at_ms) < now_ms - _LISTED_MS:
            yield from remove
            return
        yield from remove[:-1]
        if not swept_at_ms:
            yield Call(self._slot, ("HSET", keys.slices(self._name), entry, f"{listed}@{now_ms}"))

    def _ask_one(self, words: tuple[bytes | str | int, ...], what: str, *, script: Any = None) -> Any:
        [answer] = self._link.ask(
            [Call(self._slot, words, script, keys=1 if script else 0, durable=script is not None)]
        )
        if isinstance(answer, Exception):
            raise translate(answer, f"sink {self._name!r}, {what}") from answer
        return answer

    def _report(self, what: str, answers: Sequence[Any]) -> None:
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        if failed:
            logger.warning("sink %r: %s is incomplete and will be repeated: %s", self._name, what, failed[0])

    def _fenced(self) -> FencedError:
        return FencedError(f"sink {self._name!r}: another driver has taken it over; this run must stop")


def _shown(key: bytes) -> str:
    return repr(key.decode("utf-8", "backslashreplace"))
