"""What every sink behind the contract does, whatever it writes to: the published suite over all of ours."""

from __future__ import annotations

import pytest

from tests.contract.cases import SINKS
from twopc.testing.contract import Case, SinkContract


class TestEverySink(SinkContract):
    @pytest.fixture(params=SINKS)
    def case(self, request: pytest.FixtureRequest) -> Case:
        made: Case = request.param(request)
        return made
