"""The control record of a sink: its owner and its newest decision. It changes only by compare-and-set."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from twopc.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twopc.attempt import Claim


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the record; all are empty before the first driver.

    Attributes:
        id: the sink's id in this store; it moves with the store's data.
        run: the owner's run, a UUID.
        query_id: the owner's query.
        driver_epoch: how many times the sink was acquired.
        version: the highest version reserved so far.
        decided: the version of this query's newest decision.
    """

    id: str = ""
    run: str = ""
    query_id: str = ""
    driver_epoch: int = 0
    version: int = 0
    decided: int = 0


ControlT = TypeVar("ControlT", bound=Control)


def decode_control(fields: Mapping[str, object], kind: type[ControlT]) -> ControlT:
    """Decode the record from its stored fields."""
    return msgspec.convert(fields, kind, strict=False)


class ControlRecord(ABC, Generic[ControlT]):
    """The record of one sink, in its store.

    The loops retry a compare-and-set without a pause, because a lost round means that another driver has written.

    Raises:
        Exception: one of the client's ``failures``, from every method: the record cannot be read or written now.
    """

    def __init__(self, sink: str) -> None:
        self._sink = sink

    def read(self) -> ControlT:
        """Read the record."""
        return self._load()[0]

    def acquire(self, claim: Claim, *, seen: int) -> int:
        """Make the claimant the owner if the driver epoch is still ``seen``; return the new driver epoch. May be called again.

        Raises:
            FencedError: another driver has since acquired the sink.
        """
        while True:
            record, stored = self._load()
            if record.run == claim.run:
                return record.driver_epoch
            if record.driver_epoch != seen:
                raise fenced(self._sink)
            owned = replace(
                record,
                id=record.id or uuid.uuid4().hex,
                run=claim.run,
                query_id=claim.query_id,
                decided=record.decided if record.query_id == claim.query_id else 0,
                driver_epoch=seen + 1,
            )
            self._swap(stored, owned, durable=True)

    def reserve(self, run: str, *, above: int) -> int:
        """Reserve a version that is above ``above`` and every earlier one, and not below the time in ms.

        Raises:
            FencedError: another driver owns the sink.
        """

        def raised(record: ControlT) -> ControlT:
            return replace(record, version=max(time.time_ns() // 1_000_000, record.version + 1, above + 1))

        # A lost answer may hide a version that was written; the retry reserves a higher one, which is as good.
        return self._change(run, raised, durable=True).version

    def record_decision(self, run: str, version: int) -> None:
        """Record the owner's newest decision.

        Raises:
            FencedError: another driver owns the sink.
        """
        # Not durable: the proof waits for the replicas, and unproven rows may be applied again.
        self._change(run, lambda record: replace(record, decided=max(record.decided, version)), durable=False)

    def _change(self, run: str, change: Callable[[ControlT], ControlT], *, durable: bool) -> ControlT:
        while True:
            record, stored = self._load()
            if record.run != run:
                raise fenced(self._sink)
            changed = change(record)
            if changed == record or self._swap(stored, changed, durable=durable):
                return changed

    @abstractmethod
    def _load(self) -> tuple[ControlT, Any]:
        """Read the record, and its stored form for :meth:`_swap`."""

    @abstractmethod
    def _swap(self, stored: Any, record: ControlT, *, durable: bool) -> bool:
        """Write the record in one atomic step if the store still has ``stored``; return whether it had.

        ``durable``: answer only when the write is as safe as the sink's settings demand.
        """


def fenced(sink: str) -> FencedError:
    """Build the error for a driver that no longer owns the sink."""
    return FencedError(
        f"sink {sink!r}: another driver has acquired it and fenced this one. No data is at risk; stop this run"
    )
