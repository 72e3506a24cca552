"""Expressions that pick a part of a record. The grammar is small, and nothing is evaluated as code.

An expression is ``key``, ``value``, ``header:NAME``, or ``json:PATH``. The path starts at the value (``$``), and
continues with steps of the form ``.name`` or ``[index]``. Commas combine several expressions: ``key,json:$.order.id``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from confluent_kafka import Message

    Part = Callable[[Message], bytes | None]

_PATH: Final = re.compile(r"\$(?:\.[^.\[\],\s]+|\[[0-9]{1,9}\])+")
_STEP: Final = re.compile(r"\.([^.\[\],\s]+)|\[([0-9]+)\]")
_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**63 - 1
_DECODER: Final = msgspec.json.Decoder()


class ExpressionError(ValueError):
    """The expression is invalid. The message identifies the invalid part and lists the valid forms."""


@dataclass(frozen=True)
class Expression:
    """A parsed expression."""

    text: str
    parts: tuple[Part, ...]

    def bytes_of(self, message: Message) -> bytes | None:
        """Return this part of the record, or None if the record does not contain it."""
        if len(self.parts) == 1:
            return self.parts[0](message)
        found = [part(message) for part in self.parts]
        # Length prefixes keep adjacent parts apart.
        return b"".join(b"%d:%s" % (len(one), one) for one in found if one is not None) if None not in found else None

    def number_of(self, message: Message) -> int | None:
        """Return the part as a 64-bit integer, or None if it is not an integer.

        A JSON string that contains an integer also counts.
        """
        found = self.bytes_of(message)
        try:
            number = None if found is None else int(found.removeprefix(b'"').removesuffix(b'"'))
        except ValueError:
            return None
        return number if number is not None and _SMALLEST <= number <= _LARGEST else None


def parse(text: str) -> Expression:
    """Parse an expression.

    Raises:
        ExpressionError: the expression is invalid.
    """
    return Expression(text, tuple(_part(part.strip()) for part in text.split(",")))


def _part(text: str) -> Part:
    kind, _, argument = text.partition(":")
    if text == "key":
        return lambda message: _as_bytes(message.key())
    if text == "value":
        return lambda message: _as_bytes(message.value())
    if kind == "header" and argument:
        return partial(_header, argument)
    if kind == "json" and _PATH.fullmatch(argument):
        return partial(_json, [name or int(index) for name, index in _STEP.findall(argument)])
    raise ExpressionError(
        f"{text!r} is not an expression: use key, value, header:NAME or json:PATH (such as json:$.order.id or "
        "json:$.items[0]), or several expressions, separated by commas"
    )


def _header(name: str, message: Message) -> bytes | None:
    headers: Any = message.headers() or ()
    return next((_as_bytes(value) for header, value in headers if header == name), None)


def _json(steps: Sequence[Any], message: Message) -> bytes | None:
    try:
        found: Any = _DECODER.decode(message.value() or b"")
        for step in steps:
            # An index must not pick a character of a string.
            if not isinstance(found, list if isinstance(step, int) else dict):
                return None
            found = found[step]
        # Keep the value as JSON: 5 and "5" are different.
        return None if found is None else msgspec.json.encode(found, order="sorted")
    # Values are arbitrary bytes. They may be invalid UTF-8, or have thousands of brackets.
    except (msgspec.DecodeError, KeyError, IndexError, ValueError, RecursionError):
        return None


def _as_bytes(found: str | bytes | None) -> bytes | None:
    return found.encode() if isinstance(found, str) else found
