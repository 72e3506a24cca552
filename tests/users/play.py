"""Plays one program: its world, the reference, the product, the judge."""

from __future__ import annotations

import shutil
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.users.grammar import drawn
from tests.users.judge import judged
from tests.users.killed import killed
from tests.users.recorder import KILLED, NAMED
from tests.users.runner import HUNG, expected, played
from tests.users.worlds import world_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.users.program import Program
    from tests.users.runner import Outcome


@dataclass
class Verdict:
    """The outcome of one program.

    Attributes:
        program: the program.
        wrong: the faults, in words.
        named: the project's own errors that the program saw.
        killed: how often it was interrupted.
        rows: how many rows are visible.
        is_hung: whether the session can no longer be used.
        seconds: how long it took.
    """

    program: Program
    wrong: list[str]
    named: list[str] = field(default_factory=list)
    killed: int = 0
    rows: int = 0
    is_hung: bool = False
    seconds: float = 0.0

    def __str__(self) -> str:
        return "\n".join([str(self.program), *(f"WRONG: {one}" for one in self.wrong)])


def play(
    seed: int, spark: SparkSession, bootstrap_servers: str, directory: Path, *, is_killed: bool = False
) -> Verdict:
    """Draw the program of a seed, run it, and judge it.

    Args:
        seed: the program's seed.
        spark: the session for the reference, and for the product unless it is killed.
        bootstrap_servers: the address of the broker.
        directory: the directory of everything on disk.
        is_killed: run it in processes that are killed where the program is interrupted.
    """
    began = time.monotonic()
    program = drawn(seed)
    place = directory / f"program-{seed}"
    place.mkdir(parents=True)
    world = world_of(program, bootstrap_servers, place, f"u{uuid.uuid4().hex[:10]}")
    reference = expected(program, spark, world)
    outcome = killed(program, world) if is_killed else played(program, spark, world)
    verdict = _verdict(program, judged(program, reference, outcome), outcome)
    verdict.seconds = time.monotonic() - began
    if not verdict.is_hung:
        world.delete()
        shutil.rmtree(place, ignore_errors=True)
    return verdict


def _verdict(program: Program, wrong: list[str], outcome: Outcome) -> Verdict:
    return Verdict(
        program,
        wrong,
        named=[f"{event.error}: {event.text}" for event in outcome.events if event.kind == NAMED],
        killed=sum(event.kind == KILLED for event in outcome.events),
        rows=sum(sum(rows.values()) for rows in outcome.visible.values()),
        is_hung=any(event.what == HUNG for event in outcome.events),
    )
