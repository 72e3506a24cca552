"""Choose who writes a batch: its tasks, or the driver itself (*direct*). A small direct batch needs no Python worker.

The driver uses the same writer as a task, and all later steps are the same. Only one case depends on who wrote the decided
batch: a replay that must locate the rows of individual tasks (rule 9).
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The smallest and the largest limit that a user may set, in bytes. The largest is half of the 64-bit maximum, because
#: the tasks count bytes in Spark SQL, which has no larger integers.
_MAX_BYTES: Final = (1024, 1 << 62)
#: The assumed size of a Kafka record, until a batch has shown the actual size.
_FIRST_BYTES_PER_RECORD: Final = 1024
#: The number of recent batches to consider. If any of them was large, the tasks write the next batch.
_REMEMBERED: Final = 8
#: The tasks do not have to limit their rows if even this multiple of the estimated size fits.
_MARGIN: Final = 50


@dataclass(frozen=True)
class DriverUpTo:
    """``write_by="auto"`` with a custom limit: the driver writes DataFrames that are expected to fit, and tasks write the rest.

    Attributes:
        max_bytes: the maximum number of bytes that the driver collects from one DataFrame of a batch. Tasks write any
            larger DataFrame.

    Raises:
        ConfigurationError: the number is out of range.
    """

    max_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        """Validate the number."""
        (low, high), given = _MAX_BYTES, self.max_bytes
        if not isinstance(given, int) or isinstance(given, bool) or not low <= given <= high:
            raise ConfigurationError(
                f"DriverUpTo(max_bytes={given!r}): max_bytes must be between {low} and {high} bytes"
            )


#: Who writes a batch: ``exactly_once(write_by=…)``.
WriteBy = Literal["auto", "driver", "tasks"] | DriverUpTo


class Direct:
    """Remembers the sizes of each DataFrame in a run's batches.

    Args:
        write_by: the user's choice.
    """

    def __init__(self, write_by: WriteBy) -> None:
        self.way = write_by if isinstance(write_by, str) else "auto"
        self.max_bytes = (write_by if isinstance(write_by, DriverUpTo) else DriverUpTo()).max_bytes
        #: The number of bytes of rows per unit of input in recent batches, by the DataFrame's name.
        self.seen: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))


@dataclass(frozen=True)
class Way:
    """Chooses who writes each DataFrame of one batch, and learns from the result.

    Attributes:
        direct: the user's choice, and the sizes of the run's earlier batches.
        input: the batch's input.
        is_stateless: whether the query is known to be stateless. A stateful query may produce much output from little input.
    """

    direct: Direct
    input: BatchInput
    is_stateless: bool = False

    @property
    def max_bytes(self) -> int | None:
        """The maximum number of bytes that the driver may collect; None if the user wants the driver to write every batch."""
        return None if self.direct.way == "driver" else self.direct.max_bytes

    def is_direct(self, frame_name: str) -> bool:
        """Whether the driver should write a DataFrame.

        If a DataFrame's size cannot be estimated, the tasks write it and measure it.
        """
        if self.direct.way != "auto":
            return self.direct.way == "driver"
        expected_bytes = self._expected_bytes(frame_name)
        return expected_bytes is not None and expected_bytes <= self.direct.max_bytes

    def needs_bound(self, frame_name: str) -> bool:
        """Whether the tasks must also limit the rows that they send to the driver.

        With the limit, Spark must plan the DataFrame again. No limit is needed if all rows come from counted records and
        would fit even at fifty times the expected size.
        """
        expected_bytes = self._expected_bytes(frame_name)
        is_far_below = expected_bytes is not None and _MARGIN * expected_bytes <= self.direct.max_bytes
        return not (self.input.counts_records and self.is_stateless and is_far_below)

    def _expected_bytes(self, frame_name: str) -> float | None:
        first = _FIRST_BYTES_PER_RECORD if self.input.counts_records else None
        each = max(self.direct.seen[frame_name], default=first)
        return None if each is None or self.input.size is None else self.input.size * each

    def learn(self, frame_name: str, size_bytes: int) -> None:
        """Record a DataFrame's size."""
        if self.input.size is not None:
            self.direct.seen[frame_name].append(size_bytes / max(1, self.input.size))

    def learn_over(self, frame_name: str) -> None:
        """Record that a DataFrame did not fit. The reason may just be that the DataFrame's rows are unevenly distributed."""
        self.learn(frame_name, 2 * self.direct.max_bytes)


class BatchInput:
    """The input that Spark has planned for a batch, in the sources' units: records, or batches of files.

    Attributes:
        size: by how much the offsets have grown; None if unknown.
        counts_records: whether every source is Kafka.
    """

    def __init__(self, before: Sequence[str] | None, offsets: Sequence[str]) -> None:
        grown = [_growth(old, new) for old, new in zip(before or [""] * len(offsets), offsets, strict=False)]
        known = [size for size, _ in grown if size is not None]
        self.size = sum(known) if len(known) == len(grown) == len(offsets) else None
        self.counts_records = all(is_kafka for _, is_kafka in grown)


def _growth(before: str, offset: str) -> tuple[int | None, bool]:
    """Return by how much an offset's numbers have grown, and whether the offset looks like ``{"topic": {"0": 17}}``.

    A new number counts as growth from 0.
    """
    old, new = _numbers(_parsed(before)), _numbers(_parsed(offset))
    size = sum(max(0, number - old.get(path, 0)) for path, number in new.items()) if new else None
    return size, bool(new) and all(len(path) == 2 and path[1].isdecimal() for path in new)  # noqa: PLR2004 - topic, partition


def _parsed(text: str) -> Any:
    for candidate in (text, text.partition(":")[2]):  # ``source:offset`` if the query names its sources
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    return None


def _numbers(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], int]:
    if isinstance(value, dict):
        return {key: number for name, inner in value.items() for key, number in _numbers(inner, (*path, name)).items()}
    return {path: value} if isinstance(value, int) and not isinstance(value, bool) else {}
