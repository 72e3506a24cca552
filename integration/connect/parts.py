"""Check that the DataFrames of one call may be parts of one batch.

Under Spark Connect, a DataFrame is a message. PySpark makes the message for each request, and the server plans each DataFrame by
itself. So a Python function's variables are read when the rows are needed, and each DataFrame has its own clock.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import ConfigurationError
from twopc.integration.connect.frames import messages, relation_of

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The messages that contain a Python function.
_PYTHON: Final = frozenset({"PythonUDF", "PythonUDTF"})
#: The fields of a message that number its objects, or say where the user's program has made them.
_NUMBERS: Final = ("common", "plan_id")
#: PySpark's random name for a DataFrame that is passed to SQL.
_ALIAS: Final = re.compile(rb"_pyspark_connect_temp_view_[0-9a-f]{32}")
#: The messages that call a function by its name.
_CALLS: Final = frozenset({"UnresolvedFunction", "CallFunction"})
#: The clock in SQL, or in an analyzed plan. A column may have the name of the expression that computes it.
_CLOCK: Final = re.compile(
    r"\b(?:(?:current_timestamp|current_date|current_time|localtimestamp|curdate)\b(?!\(.{0,40}?\)[#:])|"
    r"(?:now|unix_timestamp)\s*\(\s*\)(?![#:]))",
    re.IGNORECASE,
)


def calls_python(frame: Any) -> bool:
    """Whether a DataFrame calls a Python function, whose variables may have changed since the DataFrame was made."""
    return _calls_python(relation_of(frame))


def require_parts(batch_id: int, frames: Mapping[str, Any], analyzed: Mapping[str, str]) -> None:
    """Check that several DataFrames may be parts of one batch. A single DataFrame cannot disagree with itself.

    Args:
        batch_id: the batch.
        frames: the user's DataFrames, by name.
        analyzed: the analyzed plans of the DataFrames that name a table or a view.

    Raises:
        ConfigurationError: two DataFrames that were made separately are equal, or several DataFrames use the clock.
    """
    if len(frames) < 2:  # noqa: PLR2004 - see above
        return
    relations = {name: relation_of(frame) for name, frame in frames.items()}
    _require_different(batch_id, {name: one for name, one in relations.items() if _calls_python(one)})
    clocks = [name for name, one in relations.items() if _reads_clock(one) or _CLOCK.search(analyzed.get(name, ""))]
    if len(clocks) > 1:
        raise ConfigurationError(
            f"batch {batch_id}: the DataFrames for {' and '.join(map(repr, clocks))} use the clock (current_timestamp(), now() "
            "or a similar function). Under Spark Connect, each DataFrame sees another time. If the time decides which DataFrame "
            "a row belongs to, a row could be lost or duplicated. Nothing was written. Compute the time once in your function, "
            "and use it in all DataFrames: now = sf.lit(datetime.now(timezone.utc))"
        )


def _require_different(batch_id: int, relations: Mapping[str, Any]) -> None:
    known: dict[bytes, str] = {}
    for name, relation in relations.items():
        other = known.setdefault(_content(relation), name)
        if other != name:
            raise ConfigurationError(
                f"batch {batch_id}: the DataFrames for {other!r} and {name!r} call a Python function, and they would write the "
                "same rows. Under Spark Connect, a Python function's variables are read when the rows are written. So if a loop "
                "variable was to decide which rows a DataFrame contains, all DataFrames contain the rows of the last value, and "
                "the other rows would be lost. Nothing was written. Bind the value when you make the function: "
                "udf(lambda value, part=part: …). If both sinks should receive the same rows, pass the same DataFrame object for "
                "both"
            )


def _content(relation: Any) -> bytes:
    """Return a message without what differs between two messages that mean the same."""
    copy = type(relation)()
    copy.CopyFrom(relation)
    for part, _ in messages(copy):
        for field in _NUMBERS:
            if field in part.DESCRIPTOR.fields_by_name:
                part.ClearField(field)
    content: bytes = copy.SerializeToString(deterministic=True)
    return _ALIAS.sub(b"", content)


def _calls_python(relation: Any) -> bool:
    return any(part.DESCRIPTOR.name in _PYTHON for part, _ in messages(relation))


def _reads_clock(relation: Any) -> bool:
    return any(_CLOCK.search(_sql(part)) for part, _ in messages(relation))


def _sql(part: Any) -> str:
    kind = part.DESCRIPTOR.name
    if kind in _CALLS:
        return f"{part.function_name}({'…' if part.arguments else ''})"
    if kind == "ExpressionString":
        return str(part.expression)
    return str(part.query) if kind == "SQL" else ""
