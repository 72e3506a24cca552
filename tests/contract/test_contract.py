"""The published contract suite, run against every sink of this repository."""

from __future__ import annotations

import pytest

from tests.contract.cases import SINKS
from twopc.testing.contract import Case, Driver, SinkContract


class TestEverySink(SinkContract):
    @pytest.fixture(params=SINKS)
    def case(self, request: pytest.FixtureRequest) -> Case:
        made: Case = request.param(request)
        return made

    def not_reached(self, point: str) -> None:
        """Every sink here passes every point."""
        pytest.fail(f"the crash point {point} is lost")

    def test_orphans_ended_by_a_sweep_are_counted(self, case: Case) -> None:
        """A sink by another author need not count them."""
        dead = Driver(case.sink)
        dead.begin()
        dead.prepare(case.rows([1, 2, 3]))
        successor = Driver(case.sink)
        successor.committer.recover_and_abort([])
        assert successor.committer.orphans_ended() == 1
