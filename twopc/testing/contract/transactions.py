"""Test a sink with single transactions and their handles, and with drivers that replace each other."""

# ruff: noqa: D102 - the names of tests are their claims

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from twopc.attempt import Evidence
from twopc.errors import FencedError, RetriableError
from twopc.testing.contract.drivers import Driver, observed

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import pyarrow as pa

    from twopc.sink import TwoPhaseCommitSink
    from twopc.testing.contract.case import Case

ROWS = [1, 2, 3, 4, 5]
OTHERS = [11, 12, 13]


class TransactionContract:
    """See :class:`twopc.testing.contract.SinkContract`."""

    # -- one transaction ---------------------------------------------------------------------------------------------------

    def test_prepared_rows_are_invisible(self, case: Case) -> None:
        driver = Driver(case.sink)
        driver.begin()
        handle = driver.prepare(case.rows(ROWS))
        driver.committer.confirm([handle], 0)
        assert case.visible() == []

    def test_committed_rows_are_visible_and_proven(self, case: Case) -> None:
        driver = Driver(case.sink)
        scan_start = driver.begin()
        handles = [driver.prepare(case.rows(ROWS)), driver.prepare(case.rows(OTHERS), partition=1)]
        assert driver.commit(handles, scan_start) == [Evidence.COMMITTED] * 2
        assert case.visible() == ROWS + OTHERS
        assert set(driver.committer.prove(handles, scan_start).values()) == {Evidence.COMMITTED}

    def test_confirming_again_changes_nothing(self, case: Case) -> None:
        """If another sink's confirmation takes long, the driver confirms every sink again."""
        driver = Driver(case.sink)
        scan_start = driver.begin()
        handles = [driver.prepare(case.rows(ROWS)), driver.prepare(case.rows(OTHERS), partition=1)]
        for _ in range(3):
            driver.committer.confirm(handles, 0)
            assert case.visible() == []
        assert set(driver.committer.commit(handles, scan_start).values()) == {Evidence.COMMITTED}
        assert case.visible() == ROWS + OTHERS

    def test_a_task_without_rows_has_no_handle(self, case: Case) -> None:
        driver = Driver(case.sink)
        scan_start = driver.begin()
        assert driver.prepare(case.rows([])) is None
        assert driver.committer.notify_checkpoint_complete(0, [], scan_start) == {}

    def test_committing_again_changes_nothing(self, case: Case) -> None:
        driver = Driver(case.sink)
        scan_start = driver.begin()
        handle = driver.prepare(case.rows(ROWS))
        driver.commit([handle], scan_start)
        for _ in range(2):
            assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
        assert Driver(case.sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
        assert case.visible() == ROWS

    def test_aborted_rows_never_become_visible(self, case: Case) -> None:
        driver = Driver(case.sink)
        scan_start = driver.begin()
        handle = driver.prepare(case.rows(ROWS))
        driver.committer.abort([handle])
        with pytest.raises(RetriableError):
            driver.committer.confirm([handle], 0)
        assert driver.committer.commit([handle], scan_start) == {handle: Evidence.ABORTED}
        assert case.visible() == []

    def test_an_older_decision_changes_nothing_after_a_newer_one(self, case: Case) -> None:
        driver = Driver(case.sink)
        scan_start = driver.begin()
        older = driver.prepare(case.rows(ROWS))
        driver.commit([older], scan_start)
        newer = driver.prepare(case.rows(OTHERS))
        driver.commit([newer], driver.begin())
        assert driver.committer.commit([older], scan_start)[older] is not Evidence.ABORTED
        assert case.visible() == ROWS + OTHERS

    def test_a_transaction_that_the_store_has_forgotten_is_not_reported_as_lost(self, case: Case) -> None:
        """If the transaction were reported as lost, its rows would be written again even though they were committed."""
        driver = Driver(case.sink)
        scan_start = driver.begin()
        older = driver.prepare(case.rows(ROWS))
        driver.commit([older], scan_start)
        newer_start = driver.begin()
        newer = driver.prepare(case.rows(OTHERS))
        driver.commit([newer], newer_start)
        driver.committer.forget(newer_start)
        assert driver.committer.prove([older], scan_start)[older] is not Evidence.ABORTED
        assert driver.committer.prove([newer], newer_start) == {newer: Evidence.COMMITTED}
        assert case.visible() == ROWS + OTHERS

    def test_without_a_response_the_outcome_is_unknown(self, case: Case) -> None:
        if case.silence is None:
            pytest.skip("this sink's store cannot be made to stop responding (Case.silence)")
        driver = Driver(case.sink)
        scan_start = driver.begin()
        handle = driver.prepare(case.rows(ROWS))
        driver.committer.confirm([handle], 0)
        with case.silence():
            assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
        assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
        assert case.visible() == ROWS

    # -- handles -----------------------------------------------------------------------------------------------------------

    def test_a_handle_survives_pickling_and_the_decision_record(self, case: Case) -> None:
        driver = Driver(case.sink)
        driver.begin()
        handle = driver.prepare(case.rows(ROWS))
        assert handle is not None and handle.transaction
        assert pickle.loads(pickle.dumps(handle)) == handle  # noqa: S301 - the bytes are our own
        assert case.sink.decode_handle(json.loads(json.dumps(case.sink.encode_handle(handle)))) == handle

    def test_all_attempts_at_the_same_rows_write_to_the_same_places(self, case: Case) -> None:
        """Otherwise, a batch that lost a transaction could never be repaired (``destinations_of``)."""
        driver = Driver(case.sink)
        driver.begin()
        handles = [driver.prepare(case.rows(ROWS)) for _ in range(2)]
        assert handles[0] is not None and handles[1] is not None
        recorded = case.sink.decode_handle(json.loads(json.dumps(case.sink.encode_handle(handles[0]))))
        places = [set(case.sink.destinations_of(handle)) for handle in (recorded, handles[1])]
        assert places[0] == places[1]
        assert all(isinstance(place, str) and place for place in places[0])

    def test_another_process_commits_what_a_dead_one_prepared(self, case: Case) -> None:
        if not case.is_outside:
            pytest.skip("when a process ends, so do its prepared transactions (Case.is_outside)")
        spawn = multiprocessing.get_context("spawn")
        receiver, sender = spawn.Pipe(duplex=False)
        child = spawn.Process(target=_prepare_and_die, args=(case.sink, case.rows(ROWS), sender))
        child.start()
        sender.close()  # so that recv() raises as soon as the child has ended
        encoded, scan_start = receiver.recv()
        child.join()
        handle = case.sink.decode_handle(encoded)
        assert case.visible() == []
        assert Driver(case.sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
        assert case.visible() == ROWS

    # -- drivers -----------------------------------------------------------------------------------------------------------

    def test_an_acquisition_may_be_repeated_and_each_driver_receives_a_higher_driver_epoch(self, case: Case) -> None:
        first = Driver(case.sink)
        again = first.committer.acquire(first.claim, first.seen)
        assert again >= first.driver_epoch
        assert Driver(case.sink).driver_epoch > again

    def test_the_sweep_ends_undecided_transactions_only(self, case: Case) -> None:
        driver = Driver(case.sink)
        scan_start = driver.begin()
        decided, orphan = driver.prepare(case.rows(ROWS)), driver.prepare(case.rows(OTHERS), partition=1)
        successor = Driver(case.sink)
        successor.committer.recover_and_abort([decided])
        found = successor.committer.commit([decided, orphan], scan_start)
        assert found == {decided: Evidence.COMMITTED, orphan: Evidence.ABORTED}
        assert case.visible() == ROWS

    def test_a_sink_that_counts_ended_orphans_counts_each_once(self, case: Case) -> None:
        dead = Driver(case.sink)
        dead.begin()
        for partition in range(3):
            dead.prepare(case.rows(ROWS), partition=partition)
        successor = Driver(case.sink)
        for _ in range(2):
            successor.committer.recover_and_abort([])
        assert successor.committer.orphans_ended() in {0, 3}, (
            "orphans_ended() must return 3, or 0 if the sink does not count orphans"
        )

    def test_a_fenced_driver_that_wakes_up_does_not_sweep_its_successors_transactions(self, case: Case) -> None:
        loser, winner = Driver(case.sink), Driver(case.sink)
        scan_start = winner.begin()
        handle = winner.prepare(case.rows(ROWS))
        loser.committer.recover_and_abort([])
        assert winner.commit([handle], scan_start) == [Evidence.COMMITTED]
        assert case.visible() == ROWS

    def test_a_fenced_driver_that_wakes_up_applies_nothing_again(self, case: Case) -> None:
        loser = Driver(case.sink)
        scan_start = loser.begin()
        handle = loser.prepare(case.rows(ROWS))
        loser.committer.confirm([handle], 0)
        winner = Driver(case.sink)
        assert winner.committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
        later = winner.prepare(case.rows(OTHERS))
        winner.commit([later], winner.begin())
        with contextlib.suppress(FencedError):  # the store may also reject the commit
            assert loser.committer.commit([handle], scan_start)[handle] is not Evidence.ABORTED
        assert case.visible() == ROWS + OTHERS

    def test_completing_one_decision_spares_another_one(self, case: Case) -> None:
        """A start may end two queries that used the sink one after another. The newer query died after its decision."""
        first = Driver(case.sink)
        older_start = first.begin()
        older = first.prepare(case.rows(ROWS))
        first.commit([older], older_start)
        second = Driver(case.sink)
        newer_start = second.begin()
        newer = second.prepare(case.rows(OTHERS))
        second.committer.confirm([newer], 1)
        third = Driver(case.sink)
        found = third.committer.initialize_state([older], older_start, [newer], is_own=False)
        assert found[older] is not Evidence.ABORTED
        found = third.committer.initialize_state([newer], newer_start, [older], is_own=False)
        assert found == {newer: Evidence.COMMITTED}
        assert case.visible() == ROWS + OTHERS

    # -- an observer -------------------------------------------------------------------------------------------------------

    def test_an_observer_sees_each_outcome_and_fences_nobody(self, case: Case) -> None:
        driver = Driver(case.sink)
        scan_start = driver.begin()
        handle, lost = driver.prepare(case.rows(ROWS)), driver.prepare(case.rows(OTHERS), partition=1)
        before = observed(case, [handle], scan_start)
        if before is None:
            pytest.skip("this sink does not show the state of its store (SinkCommitter.observe)")
        assert (before.evidence, len(before.leftovers)) == ({handle: Evidence.UNKNOWN}, 1)
        driver.committer.abort([lost])
        assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
        after = observed(case, [handle, lost], scan_start)
        assert after is not None
        assert after.evidence == {handle: Evidence.COMMITTED, lost: Evidence.ABORTED}
        assert (after.bound, after.leftovers) == (driver.committer.binding(), ())
        assert (after.record.query_id, after.record.driver_epoch) == (driver.claim.query_id, driver.driver_epoch)
        assert (after.is_ahead, after.is_behind) == (False, False)

    def test_an_observer_with_an_older_log_notices_that_the_store_is_ahead(self, case: Case) -> None:
        driver = Driver(case.sink)
        scan_start = driver.begin()
        handle = driver.prepare(case.rows(ROWS))
        driver.commit([handle], scan_start)
        seen = observed(case, [], {})
        if seen is None:
            pytest.skip("this sink does not show the state of its store (SinkCommitter.observe)")
        assert seen.is_ahead


def _prepare_and_die(sink: TwoPhaseCommitSink[Any], rows: pa.RecordBatch, to: Connection) -> None:
    driver = Driver(sink)
    scan_start = driver.begin()
    to.send((sink.encode_handle(driver.prepare(rows)), scan_start))
    os._exit(9)
