"""A program in a separate process, which is killed. ``python -m tests.users.killed '<a JSON object>'`` is one such run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.live.spark_query import session
from tests.users.grammar import drawn
from tests.users.recorder import KILLED, Event, Recorder, events_of
from tests.users.runner import HUNG, Outcome, run_once
from tests.users.worlds import World
from twopc.integration.services.guard import GuardedProcess
from twopc.integration.spark import exactly_once
from twopc.testing.crash_points import arm_from

if TYPE_CHECKING:
    from tests.users.program import Program

_ROOT: Final = Path(__file__).parents[2]
_KILLED: Final = 128 + signal.SIGKILL
_LIMIT_S: Final = 900.0


def killed(program: Program, world: World) -> Outcome:
    """Run a program: killed at each of its interruptions, and then to its end."""
    log, events = world.directory / "log", world.directory / "events"
    lost: list[Event] = []
    for number, fault in enumerate((*program.faults, "")):
        point = fault.partition("=")[0]
        facts = {
            "seed": program.seed,
            "fault": f"{point}=kill" if point else "",
            "events": str(events),
            "session": str(world.directory / f"session-{number}"),
            "world": {**asdict(world), "directory": str(world.directory)},
        }
        command = ["env", f"PYTHONPATH={_ROOT}", sys.executable, "-m", "tests.users.killed", json.dumps(facts)]
        process = GuardedProcess(command, log=log, cwd=world.directory)
        group = os.getpgid(process.pid)
        code = process.wait(_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)  # its JVM and its workers, too
        if code != _KILLED:
            if code != 0:
                said = log.read_text(errors="replace")[-3000:]
                lost.append(Event(HUNG, text=f"ended with {code}: {said}"))
            break
        lost.append(Event("process", kind=KILLED, text=fault))
    outcome = Outcome([*events_of(events), *lost])
    outcome.visible, outcome.left_open = world.visible(), world.at_rest()
    return outcome


def main() -> int:
    facts = json.loads(sys.argv[1])
    program = drawn(facts["seed"])
    world = World(**{**facts["world"], "directory": Path(facts["world"]["directory"])})
    directory = Path(facts["session"])
    directory.mkdir()
    spark = session(directory)
    spark.sparkContext.setLogLevel("OFF")
    arm_from(facts["fault"])
    run_once(program, spark, world, Recorder(Path(facts["events"])), exactly_once, world.directory / "product")
    sys.stdout.flush()
    os._exit(0)  # the events show what hangs; nothing else that still runs matters


if __name__ == "__main__":
    main()
