"""The files that the commands and a running query write next to a checkpoint, on a share without hard links and on a full one."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.operator_acts import acts_in
from tests.unit.savepoint_support import saving
from tests.unit.test_savepoint import checkpoint
from tests.without_links import run_without_links
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.migrate.handover import Handover, Handovers, Kind
from twopc.integration.migrate.place import opened
from twopc.integration.operate.boundary import StoppedWithSavepointError
from twopc.integration.operate.journal import write_down
from twopc.integration.operate.request import request_savepoint

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["checkpoint"]


def query_of(location: Path) -> Callable[[int], None]:
    """A query between two batches is sufficient."""
    query = saving(lambda *_: None, location)
    query(3)
    return query


def stop_with_savepoint(root: str) -> list[str]:
    location = Path(root)
    query = query_of(location)

    def go_on() -> bool:
        """Act as the query while the command waits."""
        with pytest.raises(StoppedWithSavepointError):
            query(4)
        return False

    assert request_savepoint(location, location.parent / "kept", stop=True, timeout_s=60, is_over=go_on) is not None
    return sorted(path.name for path in (location / "twopc").glob("*savepoint*"))


def hand_over(root: str) -> tuple[int, str]:
    with opened(root) as place:
        for batch in range(2):
            Handovers(place.writable()).add(Handover(query_id="q", batch_id=batch, offsets=(), kind=Kind.NOTHING))
        newest = Handovers(place.own).newest()
        assert newest is not None
        return newest.batch_id, type(place.writable()).__name__


def force(root: str) -> list[str]:
    for reason in ("first", "second"):
        write_down(Path(root, "twopc"), "abort", "s", {}, reason)
    return [act.reason for act in acts_in(Path(root, "twopc"))]


@pytest.mark.parametrize(
    ("work", "expected"),
    [(stop_with_savepoint, []), (hand_over, (1, "UnlinkedFiles")), (force, ["first", "second"])],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_files_that_decide_nothing_between_two_drivers_need_no_links(
    checkpoint: Path, work: Callable[[str], object], expected: object
) -> None:
    """Fails with "Operation not supported" if any of these files is written by a link."""
    assert run_without_links(errno.EOPNOTSUPP, work, str(checkpoint)) == expected


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_request_that_cannot_be_written_is_reported(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(ConfigurationError, match=r"checkpoint/twopc.*No space left.*nothing has changed"):
        request_savepoint(checkpoint, checkpoint.parent / "kept", stop=False, timeout_s=1)


@pytest.mark.parametrize("name", ["names", "read", "put_if_absent", "take"])
def test_a_query_does_not_stop_if_the_files_of_a_request_cannot_be_accessed(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Fails if a requested savepoint ends the query, or is taken again at each batch."""
    query = query_of(checkpoint)

    def go_on() -> bool:
        """Act as the query while the command waits."""
        with monkeypatch.context() as patched:
            patched.setattr(LocalFiles, name, refuse)
            for batch in (4, 5, 6):
                query(batch)
        return True

    with contextlib.suppress(ConfigurationError):  # if the request cannot be read, the response reports it
        request_savepoint(checkpoint, checkpoint.parent / "kept", stop=False, timeout_s=60, is_over=go_on)
    assert "No space left" in caplog.text
    assert len([*(checkpoint.parent / "kept").glob("[!.]*")]) <= 1
    assert not list((checkpoint / "twopc").glob("savepoint-request*"))
    query(7)  # and the next request is served
    assert query_serves(query, checkpoint)


def query_serves(query: Callable[[int], None], location: Path) -> bool:
    def go_on() -> bool:
        query(8)
        return False

    return request_savepoint(location, location.parent / "again", stop=False, timeout_s=60, is_over=go_on) is not None
