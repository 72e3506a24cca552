"""Identify records by a key expression or by their content. The same code identifies rows and records."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Message

    from twopc.integration.verify.expressions import Expression


class Row(NamedTuple):
    """A row of a batch, with those methods of a ``Message`` that a key expression calls."""

    key_bytes: bytes | None
    value_bytes: bytes | None
    header_pairs: Sequence[tuple[str | None, bytes | None]]

    def key(self) -> bytes | None:
        """See ``Message``."""
        return self.key_bytes

    def value(self) -> bytes | None:
        """See ``Message``."""
        return self.value_bytes

    def headers(self) -> Sequence[tuple[str | None, bytes | None]]:
        """See ``Message``."""
        return self.header_pairs


def identity_of(topic: str, record: Message | Row, key: Expression | None) -> bytes | None:
    """Return a digest that is the same for equal records. Return None if the expression finds nothing in the record."""
    if key is None:
        return hashlib.sha256(content_of(topic, record)).digest()
    found = key.bytes_of(cast("Message", record))  # an expression calls only methods that a row also has
    return None if found is None else hashlib.sha256(_joined([topic.encode(), found])).digest()


def content_of(topic: str, record: Message | Row) -> bytes:
    """Return a record's content, without its time and partition, which differ if a producer sends the record again."""
    headers: Any = record.headers() or ()
    pairs = [part for name, value in headers for part in (_as_bytes(name), _as_bytes(value))]
    return _joined([topic.encode(), _as_bytes(record.key()), _as_bytes(record.value()), *pairs])


def _joined(parts: Sequence[bytes | None]) -> bytes:
    """Prefix each part with its length, and join the parts. The lengths keep adjacent parts apart."""
    return b"".join(b"-" if part is None else b"%d:%s" % (len(part), part) for part in parts)


def _as_bytes(found: str | bytes | None) -> bytes | None:
    return found.encode() if isinstance(found, str) else found
