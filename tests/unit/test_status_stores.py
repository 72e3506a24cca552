"""``twopc status --sinks`` of a query whose first batch binds the checkpoint while the command is looking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.test_savepoint import checkpoint
from twopc.integration.operate import status
from twopc.integration.operate.checkpoint import read_checkpoint
from twopc.integration.operate.store_state import StoreState
from twopc.integration.operate.subject import Connection, Subject

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from twopc.integration.operate.stores import Decisions

__all__ = ["checkpoint"]


def test_each_check_reads_the_checkpoint_again(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binding = checkpoint / "twopc/binding-000001.json"
    bound = binding.read_bytes()
    binding.unlink()
    logs = []

    def observe(_: object, read: Callable[[], Decisions]) -> tuple[StoreState, list[object]]:
        logs.append(read().checkpoint.log)
        binding.write_bytes(bound)
        logs.append(read().checkpoint.log)
        return StoreState(sink="s", kind="DeltaSink"), []

    monkeypatch.setattr(status, "observe_store", observe)
    status._stores(Subject((), read_checkpoint(checkpoint), stores=(None,)), Connection(None))  # type: ignore[arg-type]
    assert logs == [None, "l"]
