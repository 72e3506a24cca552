"""The record codec: altered bytes are damage, never a missing record; a record cut short before its end never existed."""

from __future__ import annotations

import hashlib
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from twopc.attempt import Attempt
from twopc.codec import FORMAT, decode, encode
from twopc.errors import DecisionLogDamagedError
from twopc.records import Acquired, Begin, Decision, LogEntry, Part, Record, Repair, TaskReport, Truncation
from twopc.sealed import OtherVersionError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
COUNTS = st.integers(0, 2**63 - 1)
JSON = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT, max_size=3)
ATTEMPTS = st.builds(Attempt, COUNTS, COUNTS)
TASKS = st.builds(
    TaskReport,
    partition=COUNTS,
    rows=COUNTS,
    checksum=st.integers(0, 2**64 - 1),
    handles=st.dictionaries(TEXT, JSON, max_size=2),
    staged=st.none() | TEXT,
)
TUPLES = st.lists(TEXT, max_size=3).map(tuple)
TASK_TUPLES = st.lists(TASKS, max_size=3).map(tuple)
BEGINS = st.builds(Begin, query_id=TEXT, first_batch=COUNTS, prior_offsets=TUPLES, ends=st.none() | TEXT)
RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(Acquired, query_id=TEXT, run=TEXT, deciding_log=TEXT, driver=TEXT, at_ms=COUNTS),
    BEGINS,
    st.builds(
        Decision,
        query_id=TEXT,
        batch_id=COUNTS,
        attempt=ATTEMPTS,
        offsets=TUPLES,
        tasks=TASK_TUPLES,
        scan_start=st.dictionaries(TEXT, JSON, max_size=2),
        kind=TEXT,
    ),
    st.builds(Repair, query_id=TEXT, batch_id=COUNTS, attempt=ATTEMPTS, tasks=TASK_TUPLES),
    st.builds(Truncation, log_start=COUNTS, begin=BEGINS, ended=TUPLES),
)
#: The frame size: room for a header and a few bytes, so that a record needs many frames.
SMALL = 127

DECISION = Decision(
    query_id="query-a",
    batch_id=7,
    attempt=Attempt(3, 1),
    offsets=('{"0":1}',),
    tasks=(TaskReport(partition=0, rows=2, checksum=2**64 - 1, handles={"k": {"epoch": 0}}),),
    scan_start={"k": {"1": 5}},
)
ONE = encode(DECISION, max_bytes=10_000)
MANY = encode(DECISION, max_bytes=SMALL)


def numbered(frames: list[bytes], start: int = 0) -> list[tuple[int, bytes]]:
    return list(enumerate(frames, start))


def frame_of(body: bytes) -> bytes:
    head = f"{FORMAT} {hashlib.sha256(body).hexdigest()} 1/1"
    return f"{head} {hashlib.sha256(head.encode() + body).hexdigest()[:16]}\n".encode() + body


@given(st.lists(RECORDS, max_size=4), st.integers(122, 400))
def test_decoding_returns_each_record_at_the_offset_of_its_first_frame(records: list[Record], max_bytes: int) -> None:
    frames: list[bytes] = []
    expected: list[LogEntry] = []
    for record in records:
        expected.append(LogEntry(len(frames), record))
        frames += encode(record, max_bytes=max_bytes)
    assert decode(numbered(frames)) == expected


@given(RECORDS, st.integers(122, 400))
def test_no_frame_exceeds_the_size_limit(record: Record, max_bytes: int) -> None:
    assert max(map(len, encode(record, max_bytes=max_bytes))) <= max_bytes


def test_a_record_takes_one_frame_if_it_fits_and_several_if_not() -> None:
    assert len(ONE) == 1
    assert len(MANY) > 3


def test_a_size_limit_smaller_than_the_header_is_reported_as_a_bug() -> None:
    with pytest.raises(AssertionError, match="header"):
        encode(DECISION, max_bytes=106)


def test_gaps_between_offsets_do_not_matter() -> None:
    """Kafka puts transaction markers between the frames."""
    (entry,) = decode((10 + 2 * i, frame) for i, frame in enumerate(MANY))
    assert entry == LogEntry(10, DECISION)


@pytest.mark.parametrize("frames", [ONE, MANY], ids=["one frame", "many frames"])
def test_every_altered_byte_is_detected(frames: list[bytes]) -> None:
    for which, frame in enumerate(frames):
        for position in range(len(frame)):
            for difference in (1, 0x20, 0x80, 0xFF):
                altered = bytearray(frame)
                altered[position] ^= difference
                with pytest.raises(DecisionLogDamagedError):
                    decode(numbered([*frames[:which], bytes(altered), *frames[which + 1 :]]))


@pytest.mark.parametrize("frames", [ONE, MANY], ids=["one frame", "many frames"])
def test_every_truncated_frame_is_detected(frames: list[bytes]) -> None:
    for which, frame in enumerate(frames):
        for length in range(len(frame)):
            with pytest.raises(DecisionLogDamagedError):
                decode(numbered([*frames[:which], frame[:length], *frames[which + 1 :]]))


def test_a_record_without_its_last_frames_and_any_records_after_it_are_ignored() -> None:
    for length in range(len(MANY)):
        assert decode(numbered(MANY[:length])) == []
        after = decode(numbered([*MANY[:length], *ONE, *MANY, *MANY[:length]]))
        assert after == [LogEntry(length, DECISION), LogEntry(length + 1, DECISION)]


def test_every_other_missing_frame_is_detected() -> None:
    for which in range(len(MANY) - 1):
        with pytest.raises(DecisionLogDamagedError):
            decode(numbered([*MANY[:which], *MANY[which + 1 :]]))
        with pytest.raises(DecisionLogDamagedError):
            decode(numbered([*MANY[:which], *MANY[which + 1 :], *ONE]))


@given(st.permutations(MANY))
def test_every_reordering_of_frames_is_detected(frames: list[bytes]) -> None:
    assume(frames != MANY)
    with pytest.raises(DecisionLogDamagedError):
        decode(numbered(frames))


@given(st.integers(1, len(MANY) - 1))
def test_a_repeated_frame_is_detected(which: int) -> None:
    with pytest.raises(DecisionLogDamagedError):
        decode(numbered([*MANY[: which + 1], MANY[which], *MANY[which + 1 :]]))


def test_frames_of_two_records_do_not_mix() -> None:
    other = encode(Begin(query_id="x" * 300, first_batch=0, prior_offsets=()), max_bytes=SMALL)
    with pytest.raises(DecisionLogDamagedError, match="of another"):
        decode(numbered([*MANY[:1], *other[1:]]))


@given(st.binary(max_size=200))
def test_foreign_bytes_count_as_damage(data: bytes) -> None:
    with pytest.raises(DecisionLogDamagedError):
        decode([(5, data)])


DIGEST = "0" * 64
CHECK = "0" * 16


@pytest.mark.parametrize(
    "head",
    [
        f"{FORMAT} {DIGEST} 0/0 {CHECK}",
        f"{FORMAT} {DIGEST} 2/1 {CHECK}",
        f"{FORMAT} {DIGEST} \u00b2/\u00b2 {CHECK}",
        f"{FORMAT} {DIGEST} \u0661/\u0661 {CHECK}",
        f"{FORMAT} {DIGEST} {'9' * 5000}/1 {CHECK}",
        f"{FORMAT} {DIGEST} -1/1 {CHECK}",
        f"{FORMAT} {DIGEST} 1",
        f"{FORMAT}  0/0",
        f"other/1 {DIGEST} 1/1 {CHECK}",
        f"{FORMAT} {DIGEST} 1/1",
        "",
    ],
)
def test_a_malformed_header_counts_as_damage(head: str) -> None:
    with pytest.raises(DecisionLogDamagedError, match="offset 5"):
        decode([(5, head.encode() + b"\n{}")])


def test_the_error_for_a_newer_format_says_that_it_is_newer() -> None:
    later = ONE[0].replace(b"twopc/2", b"twopc/12", 1)
    with pytest.raises(
        OtherVersionError,
        match=r"twopc/12, but this version reads only twopc/2. Use the version that wrote the record",
    ):
        decode([(0, later)])


def test_a_records_fields_belong_to_its_format() -> None:
    """An older version of the same format ignores a field that it does not know.

    Change the format if a field has another meaning, or if it is wrong to ignore a new field. Then change this test.
    """
    fields = {kind.__name__: " ".join(kind.__struct_fields__) for kind in (*get_args(Record), TaskReport, Part)}
    assert (FORMAT, fields) == (
        "twopc/2",
        {
            "Acquired": "query_id run deciding_log driver at_ms sink deciding_cluster",
            "Begin": "query_id first_batch prior_offsets ends abandons prior_times",
            "Decision": "query_id batch_id attempt offsets tasks scan_start kind binding times",
            "Repair": "query_id batch_id attempt tasks replaces",
            "Truncation": "log_start begin ended",
            "TaskReport": "partition rows checksum handles staged frame_name is_direct parts is_repair",
            "Part": "index rows checksum",
        },
    )


@pytest.mark.parametrize("body", [b'{"type":"later"}', b'{"type":"begin"}', b"[]", b"{", b""])
def test_a_body_of_an_unknown_shape_counts_as_damage(body: bytes) -> None:
    with pytest.raises(DecisionLogDamagedError, match="cannot be decoded"):
        decode([(0, frame_of(body))])


def test_a_field_added_by_a_newer_version_is_ignored() -> None:
    body: Any = b'{"type":"begin","query_id":"a","first_batch":0,"prior_offsets":[],"added":1}'
    assert decode([(0, frame_of(body))]) == [LogEntry(0, Begin(query_id="a", first_batch=0, prior_offsets=()))]
