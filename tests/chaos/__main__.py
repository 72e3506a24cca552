"""``python -m tests.chaos --trials 300``: kill drivers and writers on a real Kafka, without Spark, at every step.

``--trials`` is the number of trials at each crash point. Afterwards the checkers (``twopc.testing.checkers``) judge
every query, and a table shows which faults were injected, how often, and what zero failures mean.
"""

# ruff: noqa: T201 - a command-line program

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from tests.chaos.query import TASKS, Query
from tests.live.pipeline import create_topic
from tests.live.services import chosen, kafka_service
from twopc.crash_points import OCCASIONAL, POINTS
from twopc.integration.services.guard import GuardedProcess
from twopc.testing.checkers.equality import unequal
from twopc.testing.checkers.history import Position, Row
from twopc.testing.checkers.open_transactions import left_open, states_of
from twopc.testing.checkers.verdict import verdict
from twopc.testing.checkers.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).parents[2]
ARTIFACTS: Final = ROOT / "artifacts"
_PARTITIONS: Final = 3
#: The open transactions of a stopped process hold readers back until the next driver has swept them.
_STALL_BOUND_S: Final = 30.0
_LANE_S: Final = 7200
_RULE_OF_THREE: Final = 3
_ACTIONS: Final = ("kill", "kill", "kill", "stop", "raise", "drop", "delay:50")
#: A query passes this point only with its first decision, so each trial of the point needs a new query.
_FIRST_OF_A_QUERY: Final = "driver.bound"


@dataclass
class Played:
    """A query with its trials and their results."""

    query: Query
    trials: list[tuple[str, str]]
    seed: int  #: its lane's seed
    results: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.query.root / "log"

    def given(self) -> dict[str, Any]:
        """The input of its lane, which a replay needs."""
        return {"query": asdict(self.query), "trials": self.trials, "seed": self.seed}

    def read_log(self) -> list[dict[str, Any]]:
        """The lane's reports: the JSON lines in the output of its processes."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


def plan(points: Sequence[str], trials: int, seed: int, bootstrap_servers: str, directory: str) -> list[Played]:
    """The queries to play, with their faults in order; the seed decides everything."""
    chance = random.Random(f"chaos {seed}")

    def query(kind: str, **facts: Any) -> Query:
        name = f"c{seed}{kind}"
        return Query(name=name, bootstrap_servers=bootstrap_servers, directory=directory, **facts)

    queries = {
        "rows": query("rows"),
        "shuffle": query("shuffle", shuffled=True, staged=True),
        "short": query("short", keep_batches=1),
    }
    drawn: dict[str, list[tuple[str, str]]] = {kind: [] for kind in queries}
    for point in points:
        for number in range(trials if point != _FIRST_OF_A_QUERY else 0):
            kind = {"task.staged": "shuffle", "driver.truncating": "short", "driver.barred": "rows"}.get(point)
            # The first trial of each point is a kill; the others are drawn at random.
            action = chance.choice(_ACTIONS) if number else "kill"
            drawn[kind or chance.choice(("rows", "shuffle"))].append((point, action))
    played = []
    for kind, faults in drawn.items():
        chance.shuffle(faults)
        # A sweep needs orphans, and only a driver that dies before its decision leaves any behind.
        ordered = [
            trial
            for point, action in faults
            for trial in ([("driver.confirmed", "kill")] if point == "driver.sweeping" else []) + [(point, action)]
        ]
        played.append(Played(queries[kind], ordered, chance.getrandbits(32)))
    firsts = (query(f"first{number}") for number in range(trials if _FIRST_OF_A_QUERY in points else 0))
    return played + [Played(of, [(_FIRST_OF_A_QUERY, "kill")], chance.getrandbits(32)) for of in firsts]


def replayed(artifact: Path, bootstrap_servers: str, directory: str) -> Played:
    """The query of an artifact: the same faults in the same order, but not the same timing."""
    facts = json.loads(artifact.read_text())
    query = Query(**{**facts["query"], "bootstrap_servers": bootstrap_servers, "directory": directory})
    return Played(query, [(point, action) for point, action in facts["trials"]], facts["seed"])


def play(games: Sequence[Played]) -> None:
    """Play the queries in parallel, each in its own lane."""
    with contextlib.ExitStack() as stack:
        watchers = [_watch(stack, game) for game in games]
        lanes = [_start(game) for game in games]
        for game, lane, watcher in zip(games, lanes, watchers, strict=True):
            ended = lane.wait(_LANE_S)
            lane.kill()
            lines = game.read_log()
            game.results = lines[:-1] if lines and "batches" in lines[-1] else lines
            if ended != 0 or game.results == lines:
                game.wrong.append(f"its lane ended with {ended}")
                continue
            game.wrong += [f"{r['point']}={r['action']}: {r['wrong']}" for r in game.results if r["wrong"]]
            try:
                game.wrong += _judge(game.query, lines[-1]["batches"], watcher)
            except Exception as error:  # noqa: BLE001 - reported with its seed; the other queries are still judged
                game.wrong.append(f"judging it failed: {error!r}")


def _watch(stack: contextlib.ExitStack, game: Played) -> Watcher:
    create_topic(game.query.bootstrap_servers, game.query.topic, _PARTITIONS)
    return stack.enter_context(Watcher(game.query.bootstrap_servers, game.query.topic))


def _start(game: Played) -> GuardedProcess:
    game.log.parent.mkdir(parents=True)
    lane = [sys.executable, "-m", "tests.chaos.lane", json.dumps(game.given())]
    return GuardedProcess(lane, log=game.log, cwd=ROOT)


def _judge(query: Query, batches: int, watcher: Watcher) -> list[str]:
    given: dict[Position, Row] = {}
    for batch in range(batches):
        for row in query.rows(batch):
            source, _, offset = row.partition(b":")
            given[Position(int(source), int(offset))] = Row(source, row)
    if len({where.partition for where in given}) != TASKS:
        return [f"nothing to judge after {batches} batches"]
    if query.keep_batches == 1:  # its ledger is truncated, so only the data can be checked
        found = unequal(given, watcher.catch_up())
        found += left_open(states_of(query.bootstrap_servers, f"{query.name}."))
        return [str(violation) for violation in found]
    found = verdict(query.sink, query.bootstrap_servers, watcher, given, stall_bound_s=_STALL_BOUND_S)
    # A shuffle moves a key's rows between tasks, so order is not promised.
    return [str(violation) for violation in found if not (query.shuffled and violation.checker == "order")]


def report(games: Sequence[Played], points: Sequence[str], seed: int, seconds: float) -> int:
    """Print the injected faults and the findings. Return the number of queries that broke a promise."""
    hits: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for game in games:
        for result in game.results:
            (hits if result["hit"] else missed)[result["point"]] += 1
    table = Table("point", "injected", "not reached", "bound (95 %)", title=f"seed {seed}")
    for point in points:
        # Three or fewer hits prove nothing.
        bound = f"{_RULE_OF_THREE / hits[point]:.1e}" if hits[point] > _RULE_OF_THREE else "-"
        table.add_row(point, str(hits[point]), str(missed[point]), bound)
    Console(width=100).print(table)
    broken = [game for game in games if game.wrong]
    for game in broken:
        ARTIFACTS.mkdir(exist_ok=True)
        path = ARTIFACTS / f"chaos-{seed}-{game.query.name}.json"
        facts = {**game.given(), "wrong": game.wrong, "results": game.results, "log": game.log.read_text()}
        path.write_text(json.dumps(facts, indent=1))
        print(f"{game.query.name}: {game.wrong[:5]}\n  python -m tests.chaos --replay {path}")
    total = hits.total()
    print(f"chaos: seed {seed}: {total} faults injected, {len(broken)} queries broken, {seconds:.0f} s")
    if not broken and total:
        print(
            f"No query was broken. The table shows each crash point's bound; over all crash points, "
            f"the bound is {_RULE_OF_THREE / total:.1e}"
        )
    return len(broken) + sum(not hits[point] for point in points)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--trials", type=int, default=3, help="number of trials for each crash point")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--only", default="", help="only crash points whose name contains this")
    parser.add_argument("--replay", type=Path, help="replay an artifact's query with the same faults")
    options = parser.parse_args()
    points = [point for point in (*POINTS, *OCCASIONAL) if options.only in point]
    began = time.monotonic()
    played = options.replay or f"seed {options.seed}, {options.trials} trials for each of {len(points)} points"
    print(f"chaos: {played}", flush=True)
    with tempfile.TemporaryDirectory(prefix="twopc-chaos-") as directory, kafka_service(chosen()) as kafka:
        if options.replay:
            games = [replayed(options.replay, kafka.bootstrap_servers, directory)]
            points = sorted({point for point, _ in games[0].trials})
        else:
            games = plan(points, options.trials, options.seed, kafka.bootstrap_servers, directory)
        lanes = [game for game in games if not game.query.name.startswith(f"c{options.seed}first")]
        play(lanes)
        firsts = [game for game in games if game not in lanes]
        for start in range(0, len(firsts), len(lanes)):
            play(firsts[start : start + len(lanes)])
        return 1 if report(games, points, options.seed, time.monotonic() - began) else 0


if __name__ == "__main__":
    sys.exit(main())
