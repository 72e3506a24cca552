"""Random rows for Kafka, in every Arrow type that holds bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _cast(kind: pa.DataType) -> Callable[[list[bytes | None]], Any]:
    return lambda values: pa.array(values, pa.binary()).cast(kind)


def _dictionary(values: list[bytes | None]) -> Any:
    return pa.array(values, pa.binary()).dictionary_encode()


def _fixed(values: list[bytes | None]) -> Any:
    return pa.array([None if value is None else value[:8].ljust(8, b".") for value in values], pa.binary(8))


#: For the name of each type, a function that makes an Arrow array of that type.
KINDS: dict[str, Callable[[list[bytes | None]], Any]] = {
    "binary": _cast(pa.binary()),
    "large_binary": _cast(pa.large_binary()),
    "string": _cast(pa.string()),
    "large_string": _cast(pa.large_string()),
    "binary_view": lambda values: pa.array(values, pa.binary_view()),
    "dictionary": _dictionary,
    "fixed_size_binary": _fixed,
}


def texts(chance: random.Random, count: int, *, nulls: float) -> list[bytes | None]:
    """Random texts as bytes: empty, short and long ones, and null with the probability ``nulls``."""

    def one() -> bytes | None:
        if chance.random() < nulls:
            return None
        size = chance.choice([0, 1, 8, 12, 13, chance.randrange(3_000)])
        return "".join(chance.choices("aäé€🙂 xyz\0", k=size)).encode()

    return [one() for _ in range(count)]


def sliced(chance: random.Random, array: Any) -> Any:
    """Return the array's elements as a slice of a longer array."""
    before, after = chance.randrange(10), chance.randrange(3)
    # concat_arrays returns a single array unchanged, so the array is padded with its own elements
    longer = pa.concat_arrays([array.slice(0, min(before, len(array))), array, array.slice(0, min(after, len(array)))])
    return longer.slice(min(before, len(array)), len(array))
