"""The facts that the contract suite needs about a sink under test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twopc.testing.crash_points import vanish

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from twopc.sink import TwoPhaseCommitSink


class Crash(BaseException):
    """Simulates the death of a process. No ``except Exception`` in the toolkit can catch it."""


def die() -> None:
    """Simulate the death of this process: the driver ends none of its transactions (:func:`~twopc.testing.crash_points.vanish`).

    Raises:
        Crash: always.
    """
    vanish()
    raise Crash


@dataclass
class Case:
    """A sink with its own empty output, and the functions that the suite needs to write rows and read them back.

    Attributes:
        sink: the sink.
        rows: turns numbers into rows that the sink accepts.
        visible: returns the sorted numbers that a reader sees now. A number that was written twice appears twice.
        crash: makes this process appear dead to the sink and to all objects made from the sink. Raises :class:`Crash`.
        silence: returns a context in which the store does not respond; None if that is impossible. If the store is a
            library with a lock, another process must hold the lock, because this process might be able to acquire the lock
            twice.
        is_outside: whether a prepared transaction survives the process that prepared it. If not, the suite skips the
            test of this property.
        notices_copies: whether the sink notices drivers that use copies of a checkpoint (``has_newer_decision``), and queries
            that were replaced (``is_replaced``). If not, the suite skips the tests of these properties. A sink with its own
            decision log does not need these properties.
    """

    sink: TwoPhaseCommitSink[Any]
    rows: Callable[[Sequence[int]], pa.RecordBatch]
    visible: Callable[[], list[int]]
    crash: Callable[[], None] = die
    silence: Callable[[], AbstractContextManager[None]] | None = None
    is_outside: bool = True
    notices_copies: bool = True


def numbers(values: Sequence[int]) -> pa.RecordBatch:
    """Make rows with one column, ``value``, for :attr:`Case.rows`."""
    return pa.record_batch({"value": pa.array(values, pa.int64())})
