"""What becomes of a row: one small class for each Redis command. Choose one for a sink.

``key`` is a template over columns, such as ``"total:{id}"``; other arguments name columns. A cluster applies a task's commands
slot by slot: give keys that belong together a hash tag (``"total:{{{shop}}}:{id}"`` is ``total:{<shop>}:<id>``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from sinks.redis.chunks import Commands
from sinks.redis.columns import integers, interleave, keys, numbers, parse_template, texts
from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

#: Lua passes at most about 8000 arguments to a command.
_MAX_FIELDS: Final = 1000


@dataclass(frozen=True)
class Mapping(ABC):
    """Rows to commands.

    Attributes:
        key: the key's template.

    Raises:
        ConfigurationError: an argument is not what the command takes.
    """

    key: str

    def __post_init__(self) -> None:
        parse_template(self.key)

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it needs: those in the key, and those that other arguments name."""
        found = {text for text, is_column in parse_template(self.key) if is_column}
        for argument in fields(self)[1:]:
            value = getattr(self, argument.name)
            found |= {one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, str)}
        return frozenset(found)

    @abstractmethod
    def encode(self, rows: pa.RecordBatch) -> Commands:
        """The commands of some rows, in their order.

        Raises:
            SchemaError: a column is missing or has a type that the command cannot take.
            BadRecordError: a value cannot be written.
        """

    def _commands(self, name: str, rows: pa.RecordBatch, *columns: list[bytes]) -> Commands:
        return Commands(name, 1 + len(columns), interleave([keys(rows, self.key), *columns], rows.num_rows))


@dataclass(frozen=True)
class _FieldsMapping(Mapping):
    """A command with one part for each of several columns.

    Attributes:
        fields: the columns.
    """

    fields: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.fields, str) or not 1 <= len(self.fields) <= _MAX_FIELDS:
            where = f"{type(self).__name__}(fields={self.fields!r})"
            raise ConfigurationError(f"{where}: give a tuple of 1 to {_MAX_FIELDS} columns")
        object.__setattr__(self, "fields", tuple(self.fields))

    def _pairs(self, rows: pa.RecordBatch) -> list[list[bytes]]:
        return [column for name in self.fields for column in (_same(name.encode(), rows), texts(rows, name))]


@dataclass(frozen=True)
class Set(Mapping):
    """``SET key value [PX expire_ms]``. The time to live begins when the row becomes visible."""

    value: str
    expire_ms: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expire_ms is not None:
            _require_positive("Set(expire_ms=…)", self.expire_ms)

    def encode(self, rows: pa.RecordBatch) -> Commands:
        """See :class:`Mapping`."""
        expiry = [] if self.expire_ms is None else [_same(b"PX", rows), _same(b"%d" % self.expire_ms, rows)]
        return self._commands("SET", rows, texts(rows, self.value), *expiry)


@dataclass(frozen=True)
class HashSet(_FieldsMapping):
    """``HSET key field value …``: one field for each column in ``fields``. Other fields of the hash stay."""

    def encode(self, rows: pa.RecordBatch) -> Commands:
        """See :class:`Mapping`."""
        return self._commands("HSET", rows, *self._pairs(rows))


@dataclass(frozen=True)
class IncrBy(Mapping):
    """``INCRBY key by``: ``by`` is a column of integers, or a number."""

    by: str | int = 1

    def encode(self, rows: pa.RecordBatch) -> Commands:
        """See :class:`Mapping`."""
        by = integers(rows, self.by) if isinstance(self.by, str) else _same(b"%d" % self.by, rows)
        return self._commands("INCRBY", rows, by)


@dataclass(frozen=True)
class IncrByFloat(Mapping):
    """``INCRBYFLOAT key by``: ``by`` is a column of numbers."""

    by: str

    def encode(self, rows: pa.RecordBatch) -> Commands:
        """See :class:`Mapping`."""
        return self._commands("INCRBYFLOAT", rows, numbers(rows, self.by))


@dataclass(frozen=True)
class HashIncrBy(_FieldsMapping):
    """``HINCRBY key field by`` for each column in ``fields``; the columns are integers."""

    def encode(self, rows: pa.RecordBatch) -> Commands:
        """See :class:`Mapping`."""
        row_keys = keys(rows, self.key)
        columns = [
            column for name in self.fields for column in (row_keys, _same(name.encode(), rows), integers(rows, name))
        ]
        return Commands("HINCRBY", 3, interleave(columns, rows.num_rows))


@dataclass(frozen=True)
class SetAdd(Mapping):
    """``SADD key member``."""

    member: str

    def encode(self, rows: pa.RecordBatch) -> Commands:
        """See :class:`Mapping`."""
        return self._commands("SADD", rows, texts(rows, self.member))


@dataclass(frozen=True)
class SortedSetAdd(Mapping):
    """``ZADD key score member``."""

    score: str
    member: str

    def encode(self, rows: pa.RecordBatch) -> Commands:
        """See :class:`Mapping`."""
        return self._commands("ZADD", rows, numbers(rows, self.score), texts(rows, self.member))


@dataclass(frozen=True)
class ListPush(Mapping):
    """``RPUSH key value``."""

    value: str

    def encode(self, rows: pa.RecordBatch) -> Commands:
        """See :class:`Mapping`."""
        return self._commands("RPUSH", rows, texts(rows, self.value))


@dataclass(frozen=True)
class StreamAdd(_FieldsMapping):
    """``XADD key * field value …``: one field for each column in ``fields``. Redis assigns the id when it applies the row."""

    def encode(self, rows: pa.RecordBatch) -> Commands:
        """See :class:`Mapping`."""
        return self._commands("XADD", rows, _same(b"*", rows), *self._pairs(rows))


@dataclass(frozen=True)
class Expire(Mapping):
    """``PEXPIRE key expire_ms``: ``expire_ms`` is a column of integers, or a number. The time begins when it is applied."""

    expire_ms: str | int

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.expire_ms, int):
            _require_positive("Expire(expire_ms=…)", self.expire_ms)

    def encode(self, rows: pa.RecordBatch) -> Commands:
        """See :class:`Mapping`."""
        after = self.expire_ms
        return self._commands(
            "PEXPIRE", rows, integers(rows, after) if isinstance(after, str) else _same(b"%d" % after, rows)
        )


@dataclass(frozen=True)
class Delete(Mapping):
    """``DEL key``."""

    def encode(self, rows: pa.RecordBatch) -> Commands:
        """See :class:`Mapping`."""
        return self._commands("DEL", rows)


def _same(word: bytes, rows: pa.RecordBatch) -> list[bytes]:
    return [word] * rows.num_rows


def _require_positive(where: str, number: int) -> None:
    if number <= 0:
        raise ConfigurationError(f"{where} is {number}: give a positive number of milliseconds")
