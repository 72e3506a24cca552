"""The contract suite tests the promises that every sink behind this toolkit makes. Run it against your own sink.

A test module names the sink, and pytest runs the suite::

    class TestMySink(SinkContract):
        @pytest.fixture
        def case(self, tmp_path):
            return Case(MySink("payments", tmp_path), rows=..., visible=...)

The base classes pass the protocol's crash points. The suite skips a point that a sink does not pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twopc.testing import crash_points
from twopc.testing.contract.case import Case, Crash, die, numbers
from twopc.testing.contract.drivers import Driver, Engine, Query, close_opened
from twopc.testing.contract.queries import QueryContract
from twopc.testing.contract.transactions import TransactionContract

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Case", "Crash", "Driver", "Engine", "Query", "SinkContract", "die", "numbers"]


class SinkContract(TransactionContract, QueryContract):
    """The suite. Subclass it as ``Test…`` and define the ``case`` fixture; parametrise the fixture to run several sinks."""

    @pytest.fixture
    def case(self) -> Case:
        """The sink under test, with an output that no other test writes to."""
        raise NotImplementedError(f"{type(self).__name__} needs a `case` fixture that returns a Case")

    @pytest.fixture(autouse=True)
    def _nothing_left(self) -> Iterator[None]:
        """Disarm every crash point and close every connection after a test, even if it failed."""
        crash_points.disarm()
        yield
        crash_points.disarm()
        close_opened()
