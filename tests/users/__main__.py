"""``python -m tests.users --minutes 60``: play programs of users, report them, keep those that went wrong.

A seed always draws the same program: ``python -m tests.users --replay 4711``.
"""

# ruff: noqa: T201 - a command-line program

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.live.services import chosen, kafka_service
from tests.users.grammar import drawn
from tests.users.lane import Lane
from twopc.integration.services.guard import GuardedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
ARTIFACTS: Final = ROOT / "artifacts"
_LARGEST_SEED: Final = 1_000_000_000
#: The number of programs that a session runs.
_LANE: Final = 40
#: One in this many programs runs in separate processes, which are killed.
_KILLS: Final = 15
#: No program takes this long, under any load.
_PROGRAM_LIMIT_S: Final = 1200.0
_POLL_S: Final = 1.0


@dataclass
class Totals:
    """The findings of a run."""

    programs: int = 0
    refused: int = 0
    killed: int = 0
    rows: int = 0
    wrong: list[int] = field(default_factory=list)
    pieces: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)

    def add(self, result: dict[str, Any]) -> None:
        self.programs += 1
        self.refused += bool(result["named"])
        self.killed += result["killed"]
        self.rows += result["rows"]
        self.pieces.update(result["pieces"])
        self.refusals.update(result["named"])
        if result["wrong"]:
            self.wrong.append(result["seed"])
            ARTIFACTS.mkdir(exist_ok=True)
            path = ARTIFACTS / f"users-{result['seed']}.txt"
            path.write_text(result["text"] + "\n")
            print(f"{result['text']}\nwritten to {path}\n", flush=True)

    def __str__(self) -> str:
        return (
            f"{self.programs} programs, {self.rows} rows visible, {self.killed} interruptions, {self.refused} programs refused "
            f"by name, {len(self.pieces)} different pieces; wrong: {', '.join(map(str, self.wrong)) or 'none'}"
        )


def lane_of(lane: Lane) -> Iterator[dict[str, Any]]:
    """Run a lane; yields its results. A lane that prints nothing for too long is ended."""
    results = Path(lane.results)
    log = results.with_suffix(".log")
    process = GuardedProcess([sys.executable, "-m", "tests.users.lane", json.dumps(asdict(lane))], log=log, cwd=ROOT)
    read, began, heard = 0, None, time.monotonic()
    try:
        while True:
            is_over = process.wait(_POLL_S) is not None
            lines = results.read_text().splitlines() if results.exists() else []
            for line in lines[read:]:
                facts, heard = json.loads(line), time.monotonic()
                began = facts.get("began")
                if began is None:
                    yield facts
            read = len(lines)
            is_silent = time.monotonic() - heard > _PROGRAM_LIMIT_S
            if began is not None and (is_over or is_silent):
                yield _ended(began, "hung" if is_silent else "the lane ended", log)
            if is_over or is_silent:
                return
    finally:
        process.kill()


def _ended(seed: int, why: str, log: Path) -> dict[str, Any]:
    program = drawn(seed)
    wrong = f"WRONG: {why}: {log.read_text(errors='replace')[-3000:]}"
    text = f"{program}\n{wrong}"
    return {"seed": seed, "pieces": program.pieces, "wrong": [wrong], "text": text, "named": [], "killed": 0, "rows": 0}


def run(first: int, programs: int, minutes: float, kills: int = _KILLS) -> Totals:
    """Play a number of programs, or play until a number of minutes is over."""
    totals, until = Totals(), time.monotonic() + minutes * 60
    with kafka_service(chosen()) as kafka, tempfile.TemporaryDirectory(prefix="users-") as directory:
        seed, number = first, 0
        while seed < first + programs and time.monotonic() < until:
            number += 1
            place = Path(directory) / f"lane-{number}"
            place.mkdir()
            seeds = list(range(seed, min(seed + _LANE, first + programs)))
            lane = Lane(seeds, kafka.bootstrap_servers, str(place / "work"), str(place / "results"), kills, until)
            for result in lane_of(lane):
                totals.add(result)
                seed = result["seed"] + 1
            if time.monotonic() < until and seed == seeds[0]:
                raise RuntimeError(
                    f"a lane ran no program:\n{(place / 'results.log').read_text(errors='replace')[-3000:]}"
                )
            print(f"{time.strftime('%H:%M:%S')} {totals}", flush=True)
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.users", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(_LARGEST_SEED), help="seed of the first program"
    )
    parser.add_argument("--programs", type=int, default=_LARGEST_SEED, help="maximum number of programs")
    parser.add_argument("--minutes", type=float, default=10.0, help="stop after this many minutes")
    parser.add_argument("--kills", type=int, default=_KILLS, help="kill one in this many programs; 0: kill none")
    parser.add_argument("--replay", type=int, metavar="SEED", help="replay one program")
    parser.add_argument("--show", type=int, metavar="SEED", help="print one program, and run nothing")
    options = parser.parse_args()
    if options.show is not None:
        print(drawn(options.show))
        return 0
    if options.replay is not None:
        print(drawn(options.replay))
        totals = run(options.replay, 1, 60.0, options.kills)
        for text, count in totals.refusals.items():
            print(f"refused {count} times: {text}")
    else:
        print(f"users: seeds start at {options.seed}", flush=True)
        totals = run(options.seed, options.programs, options.minutes, options.kills)
    print(totals)
    return 1 if totals.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
