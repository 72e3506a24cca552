"""Read and write the sink's record, to which a pointer in the table's log refers.

In Delta's log, an application can set the version of its last transaction (``txn``). This ``txn`` entry survives
checkpoints of the table's log, and a commit can be made conditional on it. However, the version is only a number, so
the sink uses it as a pointer to a record. A record is a small file that is written once, under a unique name. The
pointer moves in the same commit that adds the rows, and only if it has not moved since the table was loaded. Every
commit therefore includes its own evidence, and log clean-up never removes this evidence.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from twopc.errors import ConfigurationError
from twopc.new_checkpoint import NEW_NAME
from twopc.sinks.delta.errors import translated
from twopc.sinks.lake.errors import StoreError
from twopc.sinks.lake.published import Published  # noqa: TC001 - msgspec reads annotations at run time

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from twopc.sinks.delta.store import Store

#: A pointer's lower bits are random, so that rival drivers use different records. The upper bits are a counter.
_RANDOM_BITS: Final = 32


class Record(msgspec.Struct, frozen=True):
    """The content of a record file.

    Attributes:
        pointer: the record's pointer.
        control: the control record.
        published: see :class:`Published`.
        before: the previous pointer. The previous record is kept for one more commit. A machine crash may lose a commit
            that deltalake has not flushed. The table then refers to the previous record again.
    """

    pointer: int
    control: msgspec.Raw
    published: Published
    before: int | None = None


def _directory(sink: str) -> str:
    """Return the directory of the sink's records. VACUUM skips directories whose names begin with ``_``.

    A store may ignore case in paths, but the table's log does not ignore it in application ids. So a name with capitals has a
    hash at the end. Otherwise, one of the sinks ``orders`` and ``Orders`` would delete the other sink's records. No sink name
    contains a dot.
    """
    if sink == sink.lower():
        return f"_twopc/{sink}"
    return f"_twopc/{sink}.{hashlib.sha256(sink.encode()).hexdigest()[:8]}"


def record_file(sink: str, pointer: int) -> str:
    """Return the path of the record to which a pointer refers."""
    return f"{_directory(sink)}/{pointer}.json"


def app_id(sink: str) -> str:
    """Return Delta's application id for the sink's pointer."""
    return f"twopc/{sink}"


def next_pointer(pointer: int | None) -> int:
    """Choose a pointer for a new record."""
    count = 0 if pointer is None else (pointer >> _RANDOM_BITS) + 1
    return (count << _RANDOM_BITS) + secrets.randbits(_RANDOM_BITS)


def read_pointer(table: DeltaTable, sink: str) -> int | None:
    """Read the pointer from one version of the table; return None if the sink has never written to the table."""
    return newest_transaction(table, app_id(sink))


def newest_transaction(table: DeltaTable, application: str) -> int | None:
    """Return the last transaction version that an application has set (``txn``), as of this version of the table.

    Return None if there is no transaction.
    """
    with translated("reading the table's log"):
        return table.transaction_version(application)


def read_record(store: Store, table: DeltaTable, sink: str) -> tuple[DeltaTable, Record | None]:
    """Read the record, and the table version that refers to this record.

    Args:
        store: the storage.
        table: a table version that was just loaded. If that version's record has been replaced since then, a newer
            version is returned.
        sink: the sink name.

    Raises:
        StoreError: the record is missing, or the file contains something else.
    """
    while True:
        pointer = read_pointer(table, sink)
        if pointer is None:
            return table, None
        path = record_file(sink, pointer)
        stored = store.read(path)
        if stored is not None:
            return table, _decoded(stored, pointer, path)
        newer = store.load()
        if read_pointer(newer, sink) == pointer:
            former = f"_twopc/{sink}/{pointer}.json"
            if former != path and store.read(former) is not None:
                raise StoreError(
                    f"the table's log refers to {path}, but an earlier version of the toolkit has written this file to {former}",
                    ConfigurationError,
                    f"Stop the query, copy the files of _twopc/{sink}/ to {_directory(sink)}/, and start the query",
                )
            raise StoreError(
                f"the table's log refers to {path}, but this file is missing. The file records the sink's driver and "
                "committed batches. It was deleted, or the table was copied without it",
                ConfigurationError,
                f"Restore the file, or {NEW_NAME}",
            )
        table = newer


def write_record(store: Store, sink: str, record: Record) -> None:
    """Write a record. Nothing depends on this file until a commit refers to it."""
    store.write(record_file(sink, record.pointer), msgspec.json.encode(record))


def delete_older(store: Store, sink: str, pointer: int) -> None:
    """Delete all records that are older than this pointer's record, including those of failed steps."""
    for name in store.listed(_directory(sink)):
        number = name.removesuffix(".json")
        if number.isdecimal() and int(number) >> _RANDOM_BITS < pointer >> _RANDOM_BITS:
            store.delete(f"{_directory(sink)}/{name}")


def _decoded(stored: bytes, pointer: int, path: str) -> Record:
    try:
        record = msgspec.json.decode(stored, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is damaged: {error}", ConfigurationError, "Restore the file") from error
    if record.pointer != pointer:
        raise StoreError(
            f"{path} contains the record for pointer {record.pointer} instead of pointer {pointer}",
            ConfigurationError,
            "Restore the file",
        )
    return record
