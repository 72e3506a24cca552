"""Read from a batch's plan how many stores a stateful operator must commit, and how many its tasks have committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The metric that counts the stores committed by a stateful operator's tasks. A task that fails or ends early adds
#: nothing to it.
_COMMITTED: Final = "numStateStoreInstances"
#: A join of two streams, and the number of stores that each of its tasks has
#: (``SymmetricHashJoinStateManager.allStateStoreNames``). With ``_ONE_STORE_SINCE`` and later versions of the state's format,
#: each task has a single store with four column families.
_JOIN: Final = "StreamingSymmetricHashJoin"
_JOIN_STORES: Final = 4
_ONE_STORE_SINCE: Final = 3


@dataclass(frozen=True)
class Operator:
    """A stateful operator of a batch's plan.

    Attributes:
        name: Spark's name for the operator.
        stores: the number of stores that the operator's tasks commit if each task runs to its end exactly once.
        metric: Spark's count of the stores that the operator's tasks have committed.
    """

    name: str
    stores: int
    metric: Any

    def committed(self) -> int:
        """Return the total number of stores that tasks have committed for this batch, across all jobs."""
        return int(self.metric.value())


class Commits:
    """The stores that the tasks of one batch's operators have committed.

    This object does not refer to the batch's plan, so that it may outlive the batch.

    Args:
        batch_id: the batch.
        operators: one or more stateful operators.
    """

    def __init__(self, batch_id: int, operators: Sequence[Operator]) -> None:
        self.batch_id = batch_id
        self.operators = operators
        self._latest: list[int] = []
        self._checked: list[int] | None = None

    def now(self) -> list[int]:
        """Return the number of stores that each operator has committed so far."""
        self._latest = [one.committed() for one in self.operators]
        return self._latest

    def check(self) -> None:
        """Record that the last numbers belong to a complete state, so that every later commit is unwanted."""
        self._checked = self._latest

    @property
    def have_grown(self) -> bool:
        """Whether any operator has committed a store since :meth:`check`."""
        return self._checked is not None and self._checked != self.now()


def operator_at(node: Any) -> Operator | None:
    """Return the stateful operator at a node of a plan. Return None for any other node."""
    if node is None or not node.metrics().contains(_COMMITTED):
        return None
    name = str(node.nodeName())
    return Operator(name, _partitions(node) * _stores(node, name), node.longMetric(_COMMITTED))


def _stores(node: Any, name: str) -> int:
    """Return how many state stores each of an operator's tasks has."""
    has_several = name == _JOIN and int(node.stateFormatVersion()) < _ONE_STORE_SINCE
    return _JOIN_STORES if has_several else 1


def _partitions(node: Any) -> int:
    """Return how many partitions an operator has.

    An operator with a Python function has no known outputPartitioning, but its required input distribution is known. A global
    limit has one partition, although its state contains the partition count of the query's other operators.
    """
    demanded = node.requiredChildDistribution().apply(0).requiredNumPartitions()
    return int(demanded.get() if demanded.isDefined() else node.getStateInfo().numPartitions())
