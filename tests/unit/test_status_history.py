"""``twopc status`` of a checkpoint whose last batch has failed: it reports the failure, although nothing is open or in doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.live.operate.support import command
from tests.unit.history_support import ended, failed, write
from tests.unit.test_savepoint import checkpoint

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["checkpoint"]


def test_a_failed_checkpoint_is_reported_until_one_is_completed(checkpoint: Path) -> None:
    broken = failed(4, "CheckpointExpiredError", "its tasks did not finish", reason="expired")
    write(checkpoint, [ended(3), broken])
    (checkpoint / "metadata").write_text('{"id":"old"}')
    [advice, *others] = command("status", str(checkpoint), "--json").facts["advice"]
    assert "the last checkpoint, 4, expired at" in advice["what"]
    assert "CheckpointExpiredError in prepare" in advice["what"]
    assert f"twopc show {checkpoint} 4" in advice["action"]
    assert advice["runbook"].endswith("#checkpoints-fail-again-and-again")
    assert not [one for one in others if "Nothing to do" in one["action"]]

    write(checkpoint, [ended(3), broken, ended(4)])
    (checkpoint / "metadata").write_text('{"id":"old"}')
    assert "last checkpoint" not in str(command("status", str(checkpoint), "--json").facts["advice"])
