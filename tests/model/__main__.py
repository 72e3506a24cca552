"""``python -m tests.model --histories 100000``: play histories in parallel, report them, keep the failed ones.

A seed always plays the same history, in any process: ``python -m tests.model --seed 4711 --histories 1``. The exit status
is 3 if a history violates a promise, so that an error of the model itself, which exits with 1, does not look like a violation.
"""

# ruff: noqa: T201 - a command-line program

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from tests.model import VIOLATED, patches
from tests.model.history import Verdict, play

if TYPE_CHECKING:
    from collections.abc import Iterable

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
_PIECE = 50
_SHOWN = 10
_LARGEST_SEED = 1_000_000_000
_REPORT_EVERY = 10_000


def play_piece(seeds: range) -> list[Verdict]:
    verdicts = [play(seed) for seed in seeds]
    for verdict in verdicts:
        if verdict.violation is None:
            verdict.trace = []  # too long to pass between processes if it is not needed
    return verdicts


def prepare() -> None:
    patches.install()
    logging.disable(logging.CRITICAL)


def keep(verdict: Verdict, directory: Path) -> Path:
    """Write the artifact: the history's shape, its verdict, and every step."""
    directory.mkdir(exist_ok=True)
    path = directory / f"model-{verdict.seed}.txt"
    lines = [f"seed {verdict.seed}", str(verdict.shape), str(verdict.violation), dict(verdict.struck), *verdict.trace]
    path.write_text("\n".join(map(str, lines)) + "\n")
    return path


def report(verdicts: Iterable[Verdict], first_seed: int, *, stop: bool) -> int:
    """Print the totals and return the number of violations; with ``stop``, end at the first one."""
    began = time.monotonic()
    struck: Counter[str] = Counter()
    histories = drivers = in_doubt = violations = 0
    for verdict in verdicts:
        histories += 1
        drivers += verdict.drivers
        in_doubt += verdict.in_doubt
        struck.update(verdict.struck)
        if histories % _REPORT_EVERY == 0:
            print(f"{histories} histories, {violations} violations, {time.monotonic() - began:.0f} s", flush=True)
        if verdict.violation is not None:
            violations += 1
            if violations <= _SHOWN:
                print(f"seed {verdict.seed}: {verdict.violation}\n  {keep(verdict, ARTIFACTS)}")
            if stop:
                break
    print(
        f"model: seeds {first_seed} to {first_seed + histories - 1}: {histories} histories, {drivers} drivers, "
        f"{in_doubt} in doubt with a known cause, {violations} violations, {time.monotonic() - began:.0f} s"
    )
    print("faults: " + ", ".join(f"{name} {count}" for name, count in sorted(struck.items())))
    if not violations:
        print(
            f"The share of histories that violate a rule is therefore below {3 / histories:.1e} (rule of three, 95 % confidence)"
        )
    return violations


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--histories", type=int, default=5_000)
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(_LARGEST_SEED), help="seed of the first history"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--stop", action="store_true", help="stop at the first violation")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.histories)
    pieces = [seeds[start : start + _PIECE] for start in range(0, len(seeds), _PIECE)]
    with ProcessPoolExecutor(options.processes, initializer=prepare) as pool:
        verdicts = (verdict for piece in pool.map(play_piece, pieces) for verdict in piece)
        followed = track(verdicts, "histories", len(seeds), console=Console(stderr=True))
        violations = report(followed, options.seed, stop=options.stop)
        pool.shutdown(cancel_futures=True)
    return VIOLATED if violations else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a history
        again = [sys.executable, "-m", "tests.model", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - runs this program again
    sys.exit(main())
