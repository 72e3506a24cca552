"""The published contract suite, run against every sink of this repository."""

from __future__ import annotations

import pytest

from tests.contract.cases import SINKS
from twopc.testing.contract import Case, SinkContract


class TestEverySink(SinkContract):
    @pytest.fixture(params=SINKS)
    def case(self, request: pytest.FixtureRequest) -> Case:
        made: Case = request.param(request)
        return made
