"""How a batch is written: through the driver, or through tasks."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from twopc.integration.spark.direct import BatchInput, Direct, DriverUpTo, Way

LIMIT = 100_000


def kafka(*offsets: int) -> tuple[str, ...]:
    return (json.dumps({"orders": {str(number): offset for number, offset in enumerate(offsets)}}),)


def records(count: int) -> BatchInput:
    return BatchInput(kafka(1000), kafka(1000 + count))


@pytest.mark.parametrize(
    ("before", "offsets", "size", "counts_records"),
    [
        (kafka(5, 7), kafka(10, 8), 6, True),
        (None, kafka(5, 7), 12, True),
        (kafka(5), kafka(5, 3), 3, True),  # a partition was added
        (kafka(5), kafka(2), 0, True),  # the topic was created again
        (('{"logOffset":3}',), ('{"digest":"ab","logOffset":5}',), 2, False),
        (('orders:{"t":{"0":4}}',), ('orders:{"t":{"0":9}}',), 5, True),
        ((*kafka(1), '{"logOffset":0}'), (*kafka(3), '{"logOffset":1}'), 3, False),
        (("7",), ("9",), 2, False),
        (("opaque",), ("token",), None, False),
        ((*kafka(1), "opaque"), (*kafka(3), "token"), None, False),
        ((), (), 0, True),
    ],
)
def test_the_size_of_a_batchs_input_follows_from_its_offsets(
    before: tuple[str, ...] | None,
    offsets: tuple[str, ...],
    size: int | None,
    counts_records: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    planned = BatchInput(before, offsets)
    assert (planned.size, planned.counts_records) == (size, counts_records)


def test_the_first_batch_of_a_kafka_source_is_estimated_at_one_kib_per_record() -> None:
    direct = Direct(DriverUpTo(LIMIT))
    assert Way(direct, records(LIMIT // 1024)).is_direct("")
    assert not Way(direct, records(LIMIT // 1024 + 1)).is_direct("")


def test_a_batch_that_cannot_be_estimated_goes_to_the_tasks_which_measure_it() -> None:
    direct = Direct(DriverUpTo(LIMIT))
    files = BatchInput(('{"logOffset":3}',), ('{"logOffset":4}',))
    assert not Way(direct, files).is_direct("")
    Way(direct, files).learn("", 10)
    assert Way(direct, files).is_direct("")
    assert not Way(direct, BatchInput(("opaque",), ("token",))).is_direct("")


def test_the_estimate_is_the_largest_of_the_last_eight_batches_of_the_same_dataframe() -> None:
    direct = Direct(DriverUpTo(LIMIT))
    Way(direct, records(10)).learn("orders", 10 * LIMIT)
    assert not Way(direct, records(10)).is_direct("orders")
    assert Way(direct, records(10)).is_direct("audit")
    for _ in range(7):
        Way(direct, records(10)).learn("orders", 10)
    assert not Way(direct, records(10)).is_direct("orders")
    Way(direct, records(10)).learn("orders", 10)
    assert Way(direct, records(10)).is_direct("orders")


def test_a_batch_that_did_not_fit_counts_as_too_large_although_its_tasks_had_few_bytes() -> None:
    direct = Direct(DriverUpTo(LIMIT))
    Way(direct, records(10)).learn_over("")
    Way(direct, records(10)).learn("", 10)
    assert not Way(direct, records(10)).is_direct("")


def test_rows_are_bounded_unless_they_would_fit_even_at_fifty_times_their_estimated_size() -> None:
    direct = Direct(DriverUpTo(LIMIT))

    def needs_bound(planned: BatchInput, frame: str = "", *, is_stateless: bool = True) -> bool:
        return Way(direct, planned, is_stateless).needs_bound(frame)

    assert needs_bound(records(10))  # a record counts as a KiB until a batch has shown the size
    Way(direct, records(10)).learn("", 10 * 100)
    assert not needs_bound(records(20))
    assert needs_bound(records(21))
    assert needs_bound(records(10), "other")  # no batch of this plan has shown the size yet
    assert needs_bound(records(10), is_stateless=False)  # one record may end a thousand windows
    assert needs_bound(BatchInput(('{"logOffset":3}',), ('{"logOffset":4}',)))  # one file may be of any size
    assert needs_bound(BatchInput(("opaque",), ("token",)))
    Way(direct, records(10)).learn_over("")
    assert needs_bound(records(1))


@pytest.mark.parametrize(
    ("way", "is_direct", "max_bytes"), [("driver", True, None), ("tasks", False, DriverUpTo().max_bytes)]
)
def test_the_users_setting_overrides_the_estimate(
    way: Literal["driver", "tasks"],
    is_direct: bool,  # noqa: FBT001 - a parameter of the test
    max_bytes: int | None,
) -> None:
    direct = Direct(way)
    Way(direct, records(1)).learn("", 0 if way == "tasks" else 10**12)
    assert Way(direct, records(1)).is_direct("") is is_direct
    assert Way(direct, records(1)).max_bytes == max_bytes
