"""How many stores the tasks of a stateful operator must commit."""

from __future__ import annotations

from typing import Any

import pytest

from twopc.errors import ConfigurationError
from twopc.integration.spark.stateful import StatefulOperators

PARTITIONS = 5
_COMMITTED = "numStateStoreInstances"


class Metrics:
    def __init__(self, *names: str) -> None:
        self._names = names

    def contains(self, name: str) -> bool:
        return name in self._names


class Demand:
    """The input distribution that an operator requires."""

    def apply(self, _: int) -> Demand:
        return self

    def requiredNumPartitions(self) -> Demand:  # noqa: N802 - Spark's name
        return self

    def isDefined(self) -> bool:  # noqa: N802 - Spark's name
        return True

    def get(self) -> int:
        return PARTITIONS


class Node:
    """A node of a physical plan without children."""

    def __init__(self, name: str, version: int | None = None) -> None:
        self._name = name
        self._version = version
        self.committed = 0

    def metrics(self) -> Metrics:
        return Metrics(_COMMITTED)

    def nodeName(self) -> str:  # noqa: N802 - Spark's name
        return self._name

    def longMetric(self, name: str) -> Node:  # noqa: N802 - Spark's name
        assert name == _COMMITTED
        return self

    def value(self) -> int:
        return self.committed

    def requiredChildDistribution(self) -> Demand:  # noqa: N802 - Spark's name
        return Demand()

    def stateFormatVersion(self) -> int:  # noqa: N802 - Spark's name
        if self._version is None:
            raise AssertionError("only a join has a state format version")
        return self._version

    def apply(self, place: int) -> Node | None:
        return None if place else self


class Running:
    """Stands in for ``RunningQuery``, and for Spark's plan of its batch."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.evaluations = 0

    @property
    def execution(self) -> Running:
        return self

    def executedPlan(self) -> Node:  # noqa: N802 - Spark's name
        return self._node

    def toRdd(self) -> Running:  # noqa: N802 - Spark's name
        return self

    def count(self) -> int:
        self.evaluations += 1
        self._node.committed += PARTITIONS * (4 if self._node._version in {1, 2} else 1)
        return 0


@pytest.mark.parametrize(
    "node",
    [
        Node("StreamingDeduplicate"),
        *(Node("StreamingSymmetricHashJoin", version) for version in (1, 2, 3, 4)),
    ],
    ids=lambda node: f"{node._name}-{node._version}",
)
def test_an_evaluated_batch_has_all_of_its_state_in_every_state_format(node: Node) -> None:
    """From version 3 on, the task of a join has one store with four column families, and not four stores."""
    query: Any = Running(node)
    state = StatefulOperators().of_batch(query, 0, has_state=lambda: True)
    assert state is not None
    assert state.complete()
    assert query.evaluations == 1


def test_a_state_format_that_keeps_the_first_evaluations_state_is_refused() -> None:
    query: Any = Running(Node("StreamingDeduplicate"))
    with pytest.raises(ConfigurationError, match=r"batch 0 .*checkpointFormatVersion is 2\."):
        StatefulOperators(2).of_batch(query, 0, has_state=lambda: True)
