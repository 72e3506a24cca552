"""The simulated network: the simulation that the clients belong to, and the requests sent over it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.model.broker import Cluster, Log
    from tests.model.simulation import Simulation

#: How long a client waits for a response before it resends the request.
RESEND_S: Final = 0.1


class Network:
    """The simulation to which the clients belong, and the faults that the nemesis has prepared for their next requests."""

    simulation: Simulation
    #: Kinds of requests that can be lost. A producer's client itself resends the producer's own requests.
    losable: Final = frozenset({"end", "end by hand", "describe", "fence", "list", "offsets", "fetch"})

    def begin(self, simulation: Simulation) -> None:
        """Forget the previous history."""
        self.simulation = simulation
        self.sent_ends: list[Callable[[], str]] = []  #: every EndTxn of a task's transaction; each may arrive again
        self.sent_inits: list[Callable[[], object]] = []  #: every InitProducerId; each may arrive again
        self.delayed: list[Callable[[], str]] = []  #: unanswered EndTxn of drivers
        self.stale: float = 0.0  #: probability that a cut-off leader answers a read

    @property
    def cluster(self) -> Cluster:
        return self.simulation.cluster

    def lagging(self, log: Log, end: int) -> int:
        """The end offset as a cut-off leader sees it.

        A leader that knows of a truncation has seen everything before it.
        """
        chance = self.simulation.chance
        cut_off = self.stale and chance.random() < self.stale and log.truncated_at < end
        return chance.randint(log.truncated_at, end) if cut_off else end


NETWORK: Final = Network()


def raised(code: int, text: str = "", **facts: bool) -> KafkaException:
    return KafkaException(KafkaError(code, text, **facts))


class Message:
    """A record as a consumer or a delivery report returns it."""

    def __init__(
        self,
        offset: int,
        key: bytes | None = None,
        value: bytes | None = None,
        error: int = 0,
        where: tuple[str, int] = ("topic", 0),
    ) -> None:
        self._offset, self._key, self._value, self._error, self._where = offset, key, value, error, where

    def topic(self) -> str:
        return self._where[0]

    def partition(self) -> int:
        return self._where[1]

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def error(self) -> KafkaError | None:
        return KafkaError(self._error) if self._error else None


def metadata(topic: str) -> SimpleNamespace:
    numbers = range(sum(name == topic for name, _ in NETWORK.cluster.logs))
    return SimpleNamespace(topics={topic: SimpleNamespace(partitions=dict.fromkeys(numbers))})
