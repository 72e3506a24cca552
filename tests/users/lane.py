"""Plays programs one after another in one Spark session, and appends a line of JSON to a file before and after each.

Run ``python -m tests.users.lane '<a JSON object>'``. ``tests.users.__main__`` restarts it now and then, so that what a session
keeps of thousands of programs never matters.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.live.spark_query import session
from tests.users.play import play


@dataclass(frozen=True)
class Lane:
    """The input of one lane.

    Attributes:
        seeds: the seeds of its programs.
        bootstrap_servers: the address of the broker.
        directory: the directory of everything on disk.
        results: the file of its lines.
        kills: after this number of programs, one is killed in separate processes; 0: no program is killed.
        until: no program begins after this moment of the machine's monotonic clock.
    """

    seeds: list[int]
    bootstrap_servers: str
    directory: str
    results: str
    kills: int = 0
    until: float = math.inf


def run(lane: Lane) -> None:
    directory = Path(lane.directory)
    (directory / "spark").mkdir(parents=True)
    spark = session(directory / "spark", settings={"spark.ui.showConsoleProgress": "false"})
    spark.sparkContext.setLogLevel("OFF")
    for seed in lane.seeds:
        if time.monotonic() > lane.until:
            break
        _say(lane, {"began": seed})
        is_killed = bool(lane.kills) and seed % lane.kills == 0
        verdict = play(seed, spark, lane.bootstrap_servers, directory, is_killed=is_killed)
        facts = {
            "seed": seed,
            "pieces": verdict.program.pieces,
            "wrong": verdict.wrong,
            "text": str(verdict),
            "named": verdict.named,
            "killed": verdict.killed,
            "rows": verdict.rows,
            "seconds": verdict.seconds,
        }
        _say(lane, facts)
        if verdict.is_hung:
            break


def _say(lane: Lane, facts: dict[str, Any]) -> None:
    with Path(lane.results).open("a") as file:
        file.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    run(Lane(**json.loads(sys.argv[1])))
    os._exit(0)  # a query that hangs does not keep the lane running
