"""How many tasks write a batch unless the user says so: twice the slots that the cluster has, or is going to have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from twopc.integration.spark.slots import Slots


def context_of(running: int, conf: dict[str, str]) -> Any:
    profiles = SimpleNamespace(defaultResourceProfile=lambda: "default")
    scala = SimpleNamespace(
        resourceProfileManager=lambda: profiles, maxNumConcurrentTasks={"default": running}.__getitem__
    )
    return SimpleNamespace(getConf=lambda: conf, _jsc=SimpleNamespace(sc=lambda: scala))


@pytest.mark.parametrize(
    ("running", "conf", "expected"),
    [
        (2, {}, 4),
        (0, {}, 2),
        (40, {"spark.default.parallelism": "1000"}, 80),
        (0, {"spark.executor.instances": "10", "spark.executor.cores": "4"}, 80),
        (0, {"spark.executor.instances": "10", "spark.executor.cores": "4", "spark.task.cpus": "2"}, 40),
        (4, {"spark.cores.max": "16"}, 32),
        (4, {"spark.dynamicAllocation.enabled": "true"}, None),
        (4, {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "infinity"}, None),
        (
            4,
            {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": "5",
                "spark.executor.cores": "3",
            },
            30,
        ),
    ],
)
def test_a_batch_has_two_tasks_for_each_slot(running: int, conf: dict[str, str], expected: int | None) -> None:
    """With dynamic allocation, a cluster grows with the waiting tasks: if it has no limit, the plan's count applies."""
    assert Slots(context_of(running, conf)).most_writers() == expected
