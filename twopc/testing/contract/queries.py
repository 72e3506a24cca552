"""Test a sink with complete queries, which crash at each step of the protocol or run on copies of a checkpoint."""

# ruff: noqa: D102 - the names of tests are their claims

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from twopc.errors import FencedError, RefusedStartError, RetriableError
from twopc.override import Overrides
from twopc.settings import Settings
from twopc.testing import crash_points
from twopc.testing.contract.drivers import QUERY_ID, Query, all_rows

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.testing.contract.case import Case


class QueryContract:
    """See :class:`twopc.testing.contract.SinkContract`."""

    def not_reached(self, point: str) -> None:
        """Skip the test of a crash point that the sink does not pass.

        If your sink passes every point, override this method and let the test fail. Then the suite notices a lost point.
        """
        pytest.skip(f"this sink has no crash point {point}")

    # -- the whole protocol ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("point", crash_points.POINTS)
    def test_every_row_is_visible_once_after_a_crash_at(self, point: str, case: Case, tmp_path: Path) -> None:
        query = Query(case, tmp_path)
        query.run(0)
        if not query.run_until(point, 1):
            self.not_reached(point)
        query.finish(1, 2)
        assert case.visible() == all_rows(0, 1, 2)

    def test_every_row_is_visible_once_after_a_crash_during_its_first_commit(self, case: Case, tmp_path: Path) -> None:
        # The query has no earlier batch. Otherwise, the restart would commit that batch again, and would pass the crash
        # point too early.
        query = Query(case, tmp_path)
        if not query.run_until("driver.committing", 0):
            self.not_reached("driver.committing")
        query.finish(0, 1)
        assert case.visible() == all_rows(0, 1)

    @pytest.mark.parametrize("point", ["driver.prepared", "driver.confirmed", "driver.decided", "driver.committing"])
    def test_every_row_is_visible_once_after_a_response_was_lost_at(
        self, point: str, case: Case, tmp_path: Path
    ) -> None:
        query = Query(case, tmp_path)
        crash_points.arm_from(f"{point}=drop")
        try:
            query.run(0)
        except RetriableError:
            query.run(0)
        if crash_points.is_armed(point):
            self.not_reached(point)
        query.finish(1)
        assert case.visible() == all_rows(0, 1)

    # -- copies of the checkpoint ------------------------------------------------------------------------------------------

    @pytest.fixture
    def noticing(self, case: Case) -> Case:
        """Return the case, or skip the test if the sink does not notice drivers that use copies of a checkpoint."""
        if not case.notices_copies:
            pytest.skip("this sink does not notice copies of a checkpoint (Case.notices_copies)")
        return case

    @pytest.mark.parametrize("before", [0, 1, 2])
    def test_an_older_copy_of_the_checkpoint_writes_nothing_and_fences_nobody(
        self, before: int, noticing: Case, tmp_path: Path
    ) -> None:
        query = Query(noticing, tmp_path)
        running = query.start()
        query.continue_with(running, *range(before))
        copy = query.copied(tmp_path / "copy")
        query.continue_with(running, before)
        with pytest.raises(RefusedStartError, match="shows a decision that this checkpoint"):
            copy.run(before)
        query.continue_with(running, before + 1)
        assert noticing.visible() == all_rows(*range(before + 2))

    def test_a_copy_that_falls_behind_while_it_starts_is_refused(self, noticing: Case, tmp_path: Path) -> None:
        query = Query(noticing, tmp_path)
        running = query.start()
        query.continue_with(running, 0)
        copy = query.copied(tmp_path / "copy")

        def write_meanwhile() -> None:
            query.continue_with(running, 1)

        crash_points.arm("driver.inspected", write_meanwhile)
        with pytest.raises(RefusedStartError, match="shows a decision that this checkpoint"):
            copy.run(1)
        assert noticing.visible() == all_rows(0, 1)

    def test_only_the_copy_that_wrote_last_may_start_again(self, noticing: Case, tmp_path: Path) -> None:
        """The other copy's driver had decided, but was fenced before it could commit."""
        query = Query(noticing, tmp_path)
        query.run(0)
        copy = query.copied(tmp_path / "copy")

        def run_elsewhere() -> None:
            copy.run(1)

        crash_points.arm("driver.decided", run_elsewhere)
        with pytest.raises(FencedError):
            query.run(1)
        assert noticing.visible() == all_rows(0, 1)
        with pytest.raises(RefusedStartError):
            query.run(1)
        copy.run(2)
        assert noticing.visible() == all_rows(0, 1, 2)

    def test_after_two_copies_have_both_decided_only_one_may_start_again(self, noticing: Case, tmp_path: Path) -> None:
        """The copy that commits first may also have begun first, so its decision is not always the newer decision."""
        query = Query(noticing, tmp_path)
        query.run(0)
        copy = query.copied(tmp_path / "copy")

        def decide_elsewhere() -> None:
            assert copy.run_until("driver.decided", 1)

        with contextlib.suppress(FencedError):  # a sink may notice the copy before this query has decided
            query.run(1, before_tasks=decide_elsewhere)
        query.run(1)
        with pytest.raises(RefusedStartError, match="shows a decision that this checkpoint"):
            copy.run(1)
        assert noticing.visible() == all_rows(0, 1)

    def test_a_query_that_another_one_has_replaced_does_not_return(self, noticing: Case, tmp_path: Path) -> None:
        """The store may drop the evidence for the old query's last batch, so a second write could duplicate the rows."""
        old = Query(noticing, tmp_path)
        old.run(0)
        ends = Settings(overrides=Overrides(end_query_ids={QUERY_ID}))
        Query(noticing, tmp_path / "new", query_id="query-b").run(0, settings=ends)
        shown = noticing.visible()
        with pytest.raises(RefusedStartError, match="query ended"):
            old.run(0, 1, settings=Settings(overrides=Overrides(end_query_ids={"query-b"})))
        assert noticing.visible() == shown

    def test_a_query_that_ended_another_may_crash_before_its_first_decision(
        self, noticing: Case, tmp_path: Path
    ) -> None:
        """The previous query's decisions say nothing about the new query's checkpoint."""
        before = 7  # these rows differ from the new query's rows, so that every sink shows both
        Query(noticing, tmp_path).run(before, settings=Settings(overrides=Overrides(adopt_query_id=QUERY_ID)))
        new = Query(noticing, tmp_path / "new", query_id="query-b")
        ends = Settings(overrides=Overrides(end_query_ids={QUERY_ID}))
        assert new.run_until("driver.prepared", 0, settings=ends)
        new.finish(0, 1)
        assert noticing.visible() == all_rows(0, 1, before)
