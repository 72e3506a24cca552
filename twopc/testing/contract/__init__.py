"""The contract suite tests the guarantees that every sink in this toolkit must provide.

Run this suite against your own sink. Write a test module that creates the sink, and run the module with pytest::

    class TestMySink(SinkContract):
        @pytest.fixture
        def case(self, tmp_path):
            return Case(MySink("payments", tmp_path), rows=..., visible=...)

The base classes contain the protocol's crash points. If a sink does not reach a point, the suite skips that point's
test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twopc.testing import crash_points
from twopc.testing.contract.case import Case, Crash, die, numbers
from twopc.testing.contract.drivers import Driver, Engine, Query, close_opened
from twopc.testing.contract.queries import QueryContract
from twopc.testing.contract.transactions import TransactionContract
from twopc.testing.contract.writers import WriterContract

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Case", "Crash", "Driver", "Engine", "Query", "SinkContract", "die", "numbers"]


class SinkContract(TransactionContract, WriterContract, QueryContract):
    """The suite. Subclass it as ``Test…`` and define the ``case`` fixture. To test several sinks, parametrize the fixture."""

    @pytest.fixture
    def case(self) -> Case:
        """Return the sink under test. No other test may write to its output."""
        raise NotImplementedError(f"{type(self).__name__} needs a `case` fixture that returns a Case")

    @pytest.fixture(autouse=True)
    def _nothing_left(self) -> Iterator[None]:
        """Disarm every crash point and close every connection after each test, even if the test has failed."""
        crash_points.disarm()
        yield
        crash_points.disarm()
        close_opened()
