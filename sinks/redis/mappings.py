"""Convert rows to Redis commands. Each command has a small class. Choose one of the classes for a sink.

``key`` is a template with column names, such as ``"total:{id}"``. Most other arguments are column names. A cluster applies a
task's commands slot by slot, so use a hash tag for related keys (``"total:{{{shop}}}:{id}"`` is ``total:{<shop>}:<id>``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow.compute as pc

from twopc.errors import BadRecordError, ConfigurationError
from twopc.sinks import columns
from twopc.sinks.columns import integers, parse_template, texts
from twopc.sinks.redis.chunks import Commands
from twopc.sinks.redis.keys import PREFIX
from twopc.sinks.redis.numbers import increments, scores

if TYPE_CHECKING:
    import pyarrow as pa

    Column = list[bytes]

#: Lua passes at most about 8000 arguments to a command.
_MAX_FIELDS: Final = 1000
_INT64: Final = range(-(2**63), 2**63)
#: Redis adds the current time to a time to live, and rejects a sum over 64 bits. The driver may apply a row at any time. With
#: this limit, the sum fits until the end of the year 9999.
MAX_EXPIRE_MS: Final = 2**63 - 1 - 253_402_300_799_999
_EXPIRY_MS: Final = range(1, MAX_EXPIRE_MS + 1)


def keys(rows: pa.RecordBatch, template: str) -> Column:
    """Compute each row's key. Reject the sink's own keys."""
    joined = columns.keys(rows, template)
    if pc.any(pc.starts_with(joined, pattern=PREFIX), min_count=0).as_py():
        raise BadRecordError(
            f"key template {template!r} produces a key that begins with {PREFIX!r}, a prefix reserved for the sink: change the "
            "template"
        )
    found: Column = joined.to_pylist()
    return found


def _same(word: bytes, rows: pa.RecordBatch) -> Column:
    return [word] * rows.num_rows


def _integers(rows: pa.RecordBatch, number: str | int) -> Column:
    return integers(rows, number) if isinstance(number, str) else _same(b"%d" % number, rows)


def _expiries(rows: pa.RecordBatch, number: str | int) -> Column:
    found = _integers(rows, number)
    if isinstance(number, str) and (longest := max(map(int, found), default=0)) > MAX_EXPIRE_MS:
        raise BadRecordError(
            f"column {number!r} contains a time to live of {longest} ms, but Redis accepts at most {MAX_EXPIRE_MS}. "
            f"Limit the value in the DataFrame: least({number}, {MAX_EXPIRE_MS})"
        )
    return found


#: These functions convert a mapping's argument to one word in each command.
_TEXT: Final = {"encode": texts}
_SCORE: Final = {"encode": scores}
_INCREMENT: Final = {"encode": increments}
_INTEGER: Final = {"encode": _integers}
_EXPIRY: Final = {"encode": _expiries}


@dataclass(frozen=True)
class Mapping:
    """Converts rows to commands.

    Attributes:
        command: the command's name.
        key: the key template.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    command: ClassVar[str]

    key: str

    def __post_init__(self) -> None:
        parse_template(self.key)
        if self.key.startswith(PREFIX):
            raise ConfigurationError(f"key {self.key!r}: the key must not begin with {PREFIX!r}")

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the mapping needs, from the key and from other arguments."""
        found = {text for text, is_column in parse_template(self.key) if is_column}
        for argument in fields(self)[1:]:
            value = getattr(self, argument.name)
            found |= {one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, str)}
        return frozenset(found)

    def encode(self, rows: pa.RecordBatch) -> Commands:
        """Convert rows to commands, in order.

        Raises:
            SchemaError: a column is missing or has a type that the command does not accept.
            BadRecordError: a value cannot be written.
        """
        return self._commands([keys(rows, self.key), *self._arguments(rows)])

    def _commands(self, words: list[Column], width: int | None = None) -> Commands:
        return Commands(self.command, width or len(words), list(chain.from_iterable(zip(*words, strict=True))))

    def _arguments(self, rows: pa.RecordBatch) -> list[Column]:
        """Return the words after the key, one column for each word."""
        return [one.metadata["encode"](rows, getattr(self, one.name)) for one in fields(self)[1:]]


@dataclass(frozen=True)
class _FieldsMapping(Mapping):
    """Converts rows to commands that have a field and a value for each of several columns.

    Attributes:
        fields: the columns.
    """

    fields: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.fields, str) or not 1 <= len(self.fields) <= _MAX_FIELDS:
            where = f"{type(self).__name__}(fields={self.fields!r})"
            raise ConfigurationError(f"{where}: pass a tuple of 1 to {_MAX_FIELDS} columns")
        object.__setattr__(self, "fields", tuple(self.fields))

    def _arguments(self, rows: pa.RecordBatch) -> list[Column]:
        return [words for name in self.fields for words in (_same(name.encode(), rows), texts(rows, name))]


@dataclass(frozen=True)
class Set(Mapping):
    """``SET key value [PX expire_ms]``. The time to live begins when the row becomes visible."""

    command = "SET"
    value: str
    expire_ms: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expire_ms is not None:
            _require_integer(self, "expire_ms", self.expire_ms, _EXPIRY_MS)

    def _arguments(self, rows: pa.RecordBatch) -> list[Column]:
        expiry = [] if self.expire_ms is None else [_same(b"PX", rows), _same(b"%d" % self.expire_ms, rows)]
        return [texts(rows, self.value), *expiry]


@dataclass(frozen=True)
class HashSet(_FieldsMapping):
    """``HSET key field value …``, with one field for each column in ``fields``. The hash keeps its other fields."""

    command = "HSET"


@dataclass(frozen=True)
class IncrBy(Mapping):
    """``INCRBY key by``, where ``by`` is an integer column or a number."""

    command = "INCRBY"
    by: str | int = field(default=1, metadata=_INTEGER)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.by, str):
            _require_integer(self, "by", self.by, _INT64)


@dataclass(frozen=True)
class IncrByFloat(Mapping):
    """``INCRBYFLOAT key by``, where ``by`` is a numeric column.

    Redis rounds sums and doubles. The sink rejects decimals and integers that Redis would round.
    """

    command = "INCRBYFLOAT"
    by: str = field(metadata=_INCREMENT)


@dataclass(frozen=True)
class HashIncrBy(_FieldsMapping):
    """``HINCRBY key field by`` for each integer column in ``fields``."""

    command = "HINCRBY"

    def encode(self, rows: pa.RecordBatch) -> Commands:
        """See :class:`Mapping`."""
        row_keys = keys(rows, self.key)
        words = [(row_keys, _same(name.encode(), rows), integers(rows, name)) for name in self.fields]
        return self._commands(list(chain.from_iterable(words)), width=3)


@dataclass(frozen=True)
class SetAdd(Mapping):
    """``SADD key member``."""

    command = "SADD"
    member: str = field(metadata=_TEXT)


@dataclass(frozen=True)
class SortedSetAdd(Mapping):
    """``ZADD key score member``. A double must represent the score exactly. This excludes many integers beyond 2^53."""

    command = "ZADD"
    score: str = field(metadata=_SCORE)
    member: str = field(metadata=_TEXT)


@dataclass(frozen=True)
class ListPush(Mapping):
    """``RPUSH key value``."""

    command = "RPUSH"
    value: str = field(metadata=_TEXT)


@dataclass(frozen=True)
class StreamAdd(_FieldsMapping):
    """``XADD key * field value …``, with a field for each column in ``fields``. Redis assigns the id when it applies the row."""

    command = "XADD"

    def _arguments(self, rows: pa.RecordBatch) -> list[Column]:
        return [_same(b"*", rows), *super()._arguments(rows)]


@dataclass(frozen=True)
class Expire(Mapping):
    """``PEXPIRE key expire_ms``, where ``expire_ms`` is an integer column or a number.

    The time to live begins when the row is applied. As in Redis, a row whose time to live is 0 or less deletes the key.
    """

    command = "PEXPIRE"
    expire_ms: str | int = field(metadata=_EXPIRY)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.expire_ms, str):
            _require_integer(self, "expire_ms", self.expire_ms, _EXPIRY_MS)


@dataclass(frozen=True)
class Delete(Mapping):
    """``DEL key``."""

    command = "DEL"


def _require_integer(mapping: Mapping, argument: str, value: object, valid: range) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value not in valid:
        raise ConfigurationError(
            f"{type(mapping).__name__}({argument}={value!r}): pass an integer from {valid.start} to {valid.stop - 1}"
        )
