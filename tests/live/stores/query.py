"""A query without Spark, whose checkpoint contains those of Spark's files that the commands read."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from tests.live.operate.support import command
from tests.live.stores import named
from twopc.testing.contract.drivers import QUERY_ID, Query

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.operate.support import Said
    from twopc.coordinator import Coordinator
    from twopc.testing.contract import Case
    from twopc.testing.contract.drivers import Engine


class Checkpointed(Query):
    """See above.

    Attributes:
        root: the directory of the checkpoint.
    """

    def __init__(self, case: Case, root: Path, *, query_id: str = QUERY_ID) -> None:
        super().__init__(case, root / "unused", query_id=query_id)
        self._directory = root / "twopc"
        self._directory.mkdir(exist_ok=True)
        self.root = root
        (root / "metadata").write_text(json.dumps({"id": query_id}))

    def continue_with(self, coordinator: Coordinator, *batches: int, **how: Any) -> Engine:
        engine = super().continue_with(coordinator, **how)
        for batch in batches:
            self._write("offsets", batch)
            engine = super().continue_with(coordinator, batch, **how)
            self._write("commits", batch)
        return engine

    def copied(self, directory: Path) -> Checkpointed:
        shutil.copytree(self.root, directory)
        return Checkpointed(self._case, directory)

    def status(self, *words: str) -> Said:
        """The command's output for this checkpoint."""
        named.SINKS[:] = [self._case.sink]
        return command("status", str(self.root), "--sinks", "tests.live.stores.named:SINKS", *words)

    def look(self) -> tuple[int, dict[str, Any], list[tuple[str, str]]]:
        """The exit status, the facts about the store, and the urgency and the runbook entry of each finding."""
        said = self.status("--json")
        [store] = said.facts["stores"]
        return said.status, store, [(one["urgency"], one["runbook"].partition("#")[2]) for one in store["advice"]]

    def _write(self, directory: str, batch: int) -> None:
        (self.root / directory).mkdir(exist_ok=True)
        (self.root / directory / str(batch)).write_text(f'v1\n{{}}\n{{"in":{{"0":{batch}}}}}')
