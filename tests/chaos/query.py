"""The input of a chaos query: rows that every process of a lane can compute by itself."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.attempt import Attempt

TASKS: Final = 2
_ROWS: Final = 3


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query of a lane.

    Rows are ``<source>:<offset>``. There are as many sources as tasks; batch N has offsets 3N to 3N+2 of each source.

    Attributes:
        shuffled: a replay assigns the rows to other tasks.
        staged: tasks keep their rows until the batch is proven.
        speculates: another writer also runs a task that takes a long time.
    """

    name: str
    bootstrap_servers: str
    directory: str
    shuffled: bool = False
    staged: bool = False
    keep_batches: int = 100_000
    speculates: bool = True
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return Path(self.directory) / self.name

    @property
    def staging(self) -> str | None:
        return str(self.root / "staging") if self.staged else None

    @property
    def query_id(self) -> str:
        return f"query-{self.name}"

    @property
    def topic(self) -> str:
        return f"{self.name}-out"

    @property
    def sink(self) -> KafkaSink:
        return KafkaSink(
            name=self.name,
            bootstrap_servers=self.bootstrap_servers,
            topic=self.topic,
            timeout_ms=15_000,
            options=dict(self.options),
        )

    def offsets_of(self, batch: int) -> tuple[str, ...] | None:
        return (f"{_ROWS * (batch + 1)}",) if batch >= 0 else None

    def rows(self, batch: int) -> list[bytes]:
        return [b"%d:%d" % (source, _ROWS * batch + n) for source in range(TASKS) for n in range(_ROWS)]

    def split(self, batch: int, attempt: Attempt) -> list[list[bytes]]:
        """The rows of each task in this attempt. In every fifth batch, one task is empty."""
        rows = self.rows(batch)
        if self.shuffled:
            random.Random(f"{self.name} {batch} {attempt}").shuffle(rows)
            return [rows[::2], rows[1::2]]
        empty = batch % 5 == 4
        return [rows, []] if empty else [rows[:_ROWS], rows[_ROWS:]]
