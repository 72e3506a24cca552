"""What the engine tells the check of rule 6 about the jobs of an attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, call

import pytest

from twopc.integration.spark import engine as engine_module
from twopc.integration.spark.engine import SparkEngine

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(("count", "looks"), [(0, [call("tag", is_collected=False)]), (2, [])])
def test_the_check_waits_for_the_jobs_of_a_dataframe_without_tasks(
    count: int, looks: Sequence[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No result shows the job's stage. The driver did not collect any rows of the DataFrame."""
    results = [MagicMock(size_bytes=1)] * count
    monkeypatch.setattr(engine_module, "_run", lambda *_: results)
    engine: Any = MagicMock()
    engine._is_direct.return_value = False
    assert SparkEngine._results(engine, MagicMock(), MagicMock(), MagicMock(), "tag") == results
    assert engine.shuffles.look.mock_calls == looks
