"""Markers: the record that every task transaction writes into the ledger, to prove later that it was committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from twopc.attempt import TaskAttempt


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """A task transaction's own name, written inside it."""

    uuid: str
    query_id: str
    batch_id: int
    attempt: tuple[int, int]
    task: int
    rows: int


#: The names that fields had in markers of version 0.1; both are read.
_FORMER_NAMES: Final = {"lineage": "query_id", "batch": "batch_id"}


def decode_marker(value: bytes) -> Marker:
    """Read a marker, whichever version wrote it.

    Raises:
        msgspec.DecodeError: the value is not a marker.
    """
    fields = msgspec.json.decode(value, type=dict[str, object])
    return msgspec.convert({_FORMER_NAMES.get(name, name): field for name, field in fields.items()}, Marker)


def marker_of(transaction: str, task: TaskAttempt, rows: int) -> bytes:
    """The marker's value; its key is the transaction's UUID."""
    return msgspec.json.encode(
        Marker(
            uuid=transaction,
            query_id=task.query_id,
            batch_id=task.batch_id,
            attempt=(task.attempt.driver_epoch, task.attempt.counter),
            task=task.partition,
            rows=rows,
        )
    )
