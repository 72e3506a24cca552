"""Check what must hold for any store that returns to an earlier state at the same address while a query runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twopc.errors import RefusedStartError, RestoredError
from twopc.testing.contract.drivers import all_rows

if TYPE_CHECKING:
    from twopc.coordinator import Coordinator
    from twopc.testing.contract import Case
    from twopc.testing.contract.drivers import Query


def require_noticed(sink: str, lost: int, case: Case, query: Query, running: Coordinator) -> None:
    """Require that the running driver and the next start notice the loss.

    The driver has decided four batches, and the store has lost the newest batch.
    """
    for _ in range(2):
        with pytest.raises(RestoredError, match=f"sink '{sink}': its store was restored to an older state"):
            query.continue_with(running, 4)
    assert case.visible() == all_rows(*range(4 - lost))
    if lost == 1:
        query.run(3, 4)
        assert case.visible() == all_rows(0, 1, 2, 3, 4)
    else:
        with pytest.raises(RefusedStartError, match="older store"):
            query.run(4)
