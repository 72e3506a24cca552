"""Which columns of a batch a sink takes, and in which form it takes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

#: The key of a field's metadata under which an engine gives its own name of the type: users know that one.
TYPE_NAME: Final = b"twopc.type"


class Form(Enum):
    """What becomes of a column's values on their way to the sink; nulls stay nulls."""

    AS_IS = "as it is"
    BINARY = "binary"  #: a string as its UTF-8 bytes
    EPOCH_MILLIS = "epoch milliseconds"  #: a timestamp as int64, milliseconds since 1970 UTC


@dataclass(frozen=True)
class SinkColumn:
    """One column of a sink's rows.

    Attributes:
        name: what the sink calls it.
        source: the column of the batch that it is made from.
        form: how.
    """

    name: str
    source: str
    form: Form = Form.AS_IS


def type_name(field: pa.Field[pa.DataType]) -> str:
    """The type of a column as the engine's users write it; Arrow's name where the engine gives none."""
    return (field.metadata or {}).get(TYPE_NAME, str(field.type).encode()).decode()


def names_in(schema: pa.Schema) -> str:
    """The columns that there are, for messages."""
    return ", ".join(map(repr, schema.names)) or "none"
