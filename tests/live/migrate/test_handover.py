"""The hand-over's file, and which parts of a checkpoint can be handed over. These tests need no server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.migrate.cutover import last_batch
from twopc.integration.migrate.handover import Bounds, Handover, Handovers, Kind
from twopc.integration.migrate.identity import Row, content_of, identity_of
from twopc.integration.verify.expressions import parse
from twopc.sealed import with_check

if TYPE_CHECKING:
    from pathlib import Path

HANDOVER = Handover(
    query_id="q", batch_id=3, offsets=("o",), kind=Kind.REST, topics={"t": {0: Bounds(start=1, exact=2, end=5)}}
)


def checkpoint(path: Path, *, planned: int, noted: int) -> LocalFiles:
    for directory, last in (("offsets", planned), ("commits", noted)):
        (path / directory).mkdir()
        for number in range(last + 1):
            (path / directory / str(number)).write_text("v1\n{}")
    return LocalFiles(path)


def test_the_newest_handover_is_in_force_and_an_identical_one_is_not_written_again(tmp_path: Path) -> None:
    handovers = Handovers(LocalFiles(tmp_path))
    assert handovers.newest() is None
    first = handovers.add(HANDOVER)
    assert handovers.add(HANDOVER) == first
    back = msgspec.structs.replace(HANDOVER, kind=Kind.WHOLE, is_back=True)
    assert handovers.add(back) != first
    assert handovers.newest() == back
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        (json.dumps({**msgspec.to_builtins(HANDOVER), "format": 9}), "the file has no checksum"),
        (with_check(msgspec.json.encode({**msgspec.to_builtins(HANDOVER), "format": 9})).decode(), "format 9"),
    ],
)
def test_a_file_that_cannot_be_read_stops_the_query(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "handover-000001.json").write_text(content)
    with pytest.raises(ConfigurationError, match=said):
        Handovers(LocalFiles(tmp_path)).newest()


@pytest.mark.parametrize(
    ("planned", "noted", "found"), [(3, 2, (3, False)), (3, 3, (3, True)), (0, -1, (0, False)), (-1, -1, (-1, True))]
)
def test_the_checkpoint_shows_whether_the_last_batch_is_finished(
    planned: int, noted: int, found: tuple[int, bool], tmp_path: Path
) -> None:
    assert last_batch(checkpoint(tmp_path, planned=planned, noted=noted)) == found


@pytest.mark.parametrize(("planned", "noted"), [(5, 2), (2, 3)])
def test_more_than_one_unfinished_batch_is_refused(planned: int, noted: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="asyncProgressTrackingEnabled"):
        last_batch(checkpoint(tmp_path, planned=planned, noted=noted))


@pytest.mark.parametrize("noted", [[33, 40], [33, 39, 40], [33]])
def test_batches_that_are_missing_from_the_checkpoint_are_refused(noted: list[int], tmp_path: Path) -> None:
    """With asyncProgressTrackingEnabled, Spark records only some of the batches. The output also contains batches 41 to 49."""
    for directory, numbers in (("offsets", [33, 40]), ("commits", noted)):
        (tmp_path / directory).mkdir()
        for number in numbers:
            (tmp_path / directory / str(number)).write_text("v1\n{}")
    with pytest.raises(ConfigurationError, match=r"asyncProgressTrackingEnabled.* Nothing was done"):
        last_batch(LocalFiles(tmp_path))


def test_adjacent_parts_of_a_record_are_not_confused_with_each_other() -> None:
    one, other = Row(b"ab", b"c", []), Row(b"a", b"bc", [])
    empty, none = Row(None, b"x", []), Row(b"", b"x", [])
    headers = Row(None, b"x", [("h", None)])
    assert len({content_of("t", row) for row in (one, other, empty, none, headers)}) == 5
    assert content_of("t", one) != content_of("u", one)


def test_a_record_in_which_the_key_expression_finds_nothing_has_no_identity() -> None:
    key = parse("json:$.id")
    assert identity_of("t", Row(None, b'{"id": 1}', []), key) == identity_of(
        "t", Row(b"k", b'{"id": 1, "x": 2}', []), key
    )
    assert identity_of("t", Row(None, b'{"no": 1}', []), key) is None
