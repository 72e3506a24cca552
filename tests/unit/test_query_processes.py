from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from twopc.integration.services import query_processes
from twopc.integration.services.guard import GuardedProcess

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class AlreadyExited(GuardedProcess):
    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.wait()


def test_a_program_that_exits_immediately_has_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_processes, "GuardedProcess", AlreadyExited)
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    with query_processes.QueryProcesses(command, log=tmp_path / "log", cwd=tmp_path) as query:
        assert query.exit_code == 3
        assert query.members() == []
