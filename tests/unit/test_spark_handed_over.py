"""The batches that a handover next to the checkpoint allows ``exactly_once`` to write."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

import pytest

from twopc.batch import Batch
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.migrate.handover import Handover, Handovers, Kind
from twopc.integration.spark.handed_over import passing_the_rest, require_taken_over
from twopc.integration.spark.interceptors import InterceptedBatch, Interceptor, pass_through

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def batch(number: int, query_id: str = "query") -> Batch:
    return Batch(query_id, number, ("5",), lambda _: None)


def unread() -> int | None:
    raise AssertionError("a start without a rollback must not read the log twice")


class NeverLists(LocalFiles):
    """An object store may behave like this for a while: a file can be read, but no listing contains it."""

    def names(self, directory: str) -> list[str]:
        del directory
        return []


def files_with(root: Path, *handovers: dict[str, Any]) -> LocalFiles:
    files = LocalFiles(root)
    for facts in handovers:
        Handovers(files).add(Handover(**{"query_id": "query", "batch_id": 7, "offsets": ("5",), **facts}))
    return files


@pytest.mark.parametrize(
    ("handovers", "number"),
    [
        ([], 7),
        ([{"kind": Kind.NOTHING}], 7),
        ([{"kind": Kind.NOTHING}], 8),
        ([{"kind": Kind.REST}], 8),
        ([{"kind": Kind.REST}, {"kind": Kind.NOTHING, "batch_id": 6}], 7),
        ([{"kind": Kind.REST, "query_id": "another"}], 7),
    ],
    ids=["none", "nothing, done", "nothing, next", "the next batch", "an older one", "another query's"],
)
def test_a_batch_that_has_not_begun_needs_no_take_over(
    handovers: list[dict[str, Any]], number: int, tmp_path: Path
) -> None:
    require_taken_over(files_with(tmp_path, *handovers), batch(number), unread)


@pytest.mark.parametrize("passed", [None, 6])
def test_a_batch_that_another_sink_has_begun_is_refused_unless_its_rest_is_passed(
    passed: int | None, tmp_path: Path
) -> None:
    files = files_with(
        tmp_path, *({"batch_id": number, "kind": Kind.NOTHING} for number in range(9)), {"kind": Kind.REST}
    )
    passing = contextlib.nullcontext() if passed is None else passing_the_rest(passed, ())
    with (
        passing,
        pytest.raises(ConfigurationError, match=r"another sink began to write batch 7.*handover-000010.*TakeOver"),
    ):
        require_taken_over(files, batch(7), unread)
    with passing_the_rest(7, ()):
        require_taken_over(files, batch(7), unread)


@pytest.mark.parametrize("decided", [None, 6, 7])
@pytest.mark.parametrize("kind", list(Kind))
def test_a_checkpoint_returned_to_the_old_sink_is_refused_until_it_is_handed_over_again(
    kind: Kind, decided: int | None, tmp_path: Path
) -> None:
    files = files_with(tmp_path, {"kind": kind, "is_back": True})
    for number in (7, 8):
        with (
            passing_the_rest(7, ()),
            pytest.raises(ConfigurationError, match=rf"rollback.*batch {number} since.*old query.*cutover --apply"),
        ):
            require_taken_over(files, batch(number), lambda: decided)


def test_after_a_rollback_without_a_fence_the_query_finishes_only_the_batch_that_it_has_decided(tmp_path: Path) -> None:
    """The old sink would write the decided batch again. But it may have written any later batch."""
    files = files_with(tmp_path, {"kind": Kind.NOTHING, "is_back": True})
    require_taken_over(files, batch(8), lambda: 8)
    with pytest.raises(ConfigurationError, match="has returned this checkpoint to the old sink"):
        require_taken_over(files, batch(9), lambda: 8)


def test_a_damaged_handover_is_refused(tmp_path: Path) -> None:
    (tmp_path / "handover-000001.json").write_text('{"query_id": "query"')
    with pytest.raises(ConfigurationError, match=r"handover-000001\.json cannot be read"):
        require_taken_over(LocalFiles(tmp_path), batch(7), unread)


class TakesOver(Interceptor):
    """Passes on the rest of a batch, as ``TakeOver`` does."""

    def intercept(self, batch: InterceptedBatch, proceed: Callable[[Any], None]) -> None:
        rest = ["the rest of", batch.frames]
        with passing_the_rest(batch.batch_id, rest):
            proceed(rest)


class Copies(Interceptor):
    """Replaces the rows."""

    def intercept(self, batch: InterceptedBatch, proceed: Callable[[Any], None]) -> None:
        proceed(copy.copy(batch.frames))


class Passes(Interceptor):
    """Leaves the rows as they are."""

    def intercept(self, batch: InterceptedBatch, proceed: Callable[[Any], None]) -> None:
        proceed(batch.frames)


def test_an_interceptor_may_change_the_rows_only_before_take_over_compares_them() -> None:
    batch, written = InterceptedBatch(["rows"], 7, "/checkpoint"), list[Any]()  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match=r"after TakeOver has changed the rows of batch 7.*Make TakeOver the last"
    ):
        pass_through([TakesOver(), Copies()], batch, written.append)
    assert not written
    pass_through([Copies(), TakesOver(), Passes()], batch, written.append)
    pass_through([Passes(), Copies()], batch, written.append)
    assert written == [["the rest of", ["rows"]], ["rows"]]


def test_a_handover_that_is_not_yet_listed_is_in_force(tmp_path: Path) -> None:
    handovers = Handovers(NeverLists(tmp_path))
    for batch_id in range(3):
        handovers.add(Handover(query_id="q", batch_id=batch_id, offsets=(), kind=Kind.NOTHING))
    newest = handovers.newest()
    assert newest is not None
    assert newest.batch_id == 2


def test_a_batch_is_refused_although_its_handover_is_not_yet_listed(tmp_path: Path) -> None:
    """Seen: the query wrote the whole batch, and the other sink had written some of its rows before."""
    files_with(tmp_path, {"kind": Kind.REST})
    with pytest.raises(ConfigurationError, match="another sink began to write batch 7"):
        require_taken_over(NeverLists(tmp_path), batch(7), unread)
