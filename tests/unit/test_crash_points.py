"""A crash point acts once, only where a call has armed it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.fake_sink import FakeSink, World
from twopc import crash_points
from twopc.crash_points import arm, crash_point, disarm
from twopc.errors import ConfigurationError, RetriableError
from twopc.testing.contract import Case, Query, numbers
from twopc.testing.crash_points import VARIABLE, InjectedFault, arm_from

ROOT = Path(__file__).parents[2]


def test_an_unarmed_point_does_nothing() -> None:
    passed: list[str] = []
    arm("driver.decided", lambda: passed.append("decided"))
    crash_point("driver.prepared")
    assert passed == []


def test_an_armed_point_acts_once() -> None:
    arm_from("driver.decided=raise")
    with pytest.raises(InjectedFault):
        crash_point("driver.decided")
    crash_point("driver.decided")
    assert crash_points._armed == {}


def test_an_armed_point_acts_after_the_given_number_of_passages() -> None:
    passed: list[int] = []
    arm("task.began", lambda: passed.append(1), passage=3)
    for expected in (0, 0, 1, 1):
        crash_point("task.began")
        assert len(passed) == expected


def test_several_points_can_be_armed_at_once() -> None:
    arm_from("driver.decided=raise,driver.prepared@2=raise,")
    crash_point("driver.prepared")
    for name in ("driver.prepared", "driver.decided"):
        with pytest.raises(InjectedFault):
            crash_point(name)


def test_disarm_disarms_every_point() -> None:
    arm_from("driver.decided=raise,driver.prepared=raise")
    disarm()
    crash_point("driver.decided")
    assert crash_points._armed == {}


@pytest.mark.parametrize(("action", "left"), [("raise", 0), ("die", 2)])
def test_a_driver_that_dies_leaves_its_transactions_open(action: str, left: int, tmp_path: Path) -> None:
    world = World()
    arm_from(f"driver.confirmed={action}")
    with pytest.raises(InjectedFault):
        Query(case_of(world), tmp_path).run(0)
    assert len(world.store().pending()) == left


def test_the_driver_around_a_dead_driver_still_ends_its_own_transactions(tmp_path: Path) -> None:
    inner, outer = World(), World()

    def die_inside() -> None:
        assert Query(case_of(inner), tmp_path / "inner").run_until("driver.confirmed", 0)
        arm_from("driver.confirmed=raise")

    with pytest.raises(InjectedFault):
        Query(case_of(outer), tmp_path / "outer").run(0, before_tasks=die_inside)
    assert [len(world.store().pending()) for world in (inner, outer)] == [2, 0]


def case_of(world: World) -> Case:
    return Case(FakeSink(world), numbers, world.store().visible)


def test_drop_raises_a_retriable_error_and_delay_raises_none() -> None:
    arm_from("driver.decided=drop,driver.prepared=delay:30")
    with pytest.raises(RetriableError, match="loss of a response"):
        crash_point("driver.decided")
    began = time.monotonic()
    crash_point("driver.prepared")
    assert time.monotonic() - began >= 0.03


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("driver.nowhere=raise", "driver.nowhere"),
        ("driver.decided=explode", "explode"),
        ("driver.decided", "driver.decided"),
        ("driver.decided=delay", "'delay'"),
        ("driver.decided=delay:x", "'delay:x'"),
        ("driver.decided@x=raise", "'x'"),
        ("driver.decided@-1=raise", "'-1'"),
    ],
)
def test_an_invalid_spec_is_rejected_with_an_error_that_identifies_it(spec: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(named)):
        arm_from(spec)
    assert crash_points._armed == {}


PASSAGE = "crash_point('driver.decided')"
#: Everything that a production process imports.
PRODUCT = (
    "twopc.coordinator",
    "twopc.sinks.kafka",
    "twopc.sinks.redis",
    "twopc.sinks.hbase",
    "twopc.integration.spark",
    "twopc.integration.cli",
)


def run_program(*lines: str, action: str) -> subprocess.CompletedProcess[str]:
    armed = f"driver.decided@2={action}"
    return subprocess.run(
        [sys.executable, "-c", "\n".join(["from twopc.crash_points import crash_point", *lines])],
        env={**os.environ, VARIABLE: armed, "TWOPC_FAULTS": armed},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(("action", "code"), [("kill", -9), ("raise", 1)])
def test_a_process_that_calls_arm_from_environment_is_armed(action: str, code: int) -> None:
    arming = "from twopc.testing.crash_points import arm_from_environment\narm_from_environment()"
    done = run_program(arming, PASSAGE, "print('passed', flush=True)", PASSAGE, action=action)
    assert (done.returncode, done.stdout) == (code, "passed\n")


def test_the_environment_alone_arms_no_crash_point() -> None:
    imports = [f"import {name}" for name in PRODUCT]
    loaded = "print(sorted(name for name in sys.modules if name.startswith('twopc.testing')))"
    done = run_program("import sys", *imports, PASSAGE, PASSAGE, loaded, action="kill")
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_the_listed_crash_points_are_those_in_the_source() -> None:
    sources = [path for package in ("twopc", "sinks", "integration") for path in (ROOT / package).rglob("*.py")]
    sources = [path for path in sources if ROOT / "twopc" / "testing" not in path.parents]
    text = "\n".join(path.read_text() for path in sources)
    passed = set(
        re.findall(r'"((?:driver|task)\.[a-z_]+)"', text.replace((ROOT / "twopc/crash_points.py").read_text(), ""))
    )
    assert passed == {*crash_points.POINTS, *crash_points.OCCASIONAL}
