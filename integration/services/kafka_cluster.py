"""Several Kafka brokers on this machine without Docker, each of which can be killed, paused and started again.

`with LocalKafkaCluster() as cluster: cluster[2].kill()`. Each node is a `LocalKafka` that is broker and controller; all are
the controllers' quorum, so that a majority of them keeps the cluster going.
"""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from integration.services.jars import DEFAULT_KAFKA_VERSION
from integration.services.kafka import LocalKafka, new_cluster_id
from integration.services.ports import HOST, free_ports
from integration.services.startable import Startable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["LocalKafkaCluster"]

_ALL_REPLICAS = 3


class LocalKafkaCluster(Startable):
    """Brokers that replicate to each other, owned by this process. Node ids count from 1.

    Topics have by default as many replicas as there are brokers, up to three, and take a record when all but one of them
    have it: what is acknowledged survives any one node.

    Attributes:
        data_dir: each node's own directory is in it, `broker.log` included.
    """

    def __init__(
        self,
        *,
        brokers: int = 3,
        version: str = DEFAULT_KAFKA_VERSION,
        properties: Mapping[str, str] | None = None,
        heap: str = "320m",
    ) -> None:
        """Describe a cluster; nothing is started yet.

        Args:
            brokers: how many nodes.
            version: see `LocalKafka`.
            properties: broker properties of every node that override or add to the defaults.
            heap: maximal Java heap (`-Xmx`) of each node.
        """
        self.data_dir = Path(tempfile.mkdtemp(prefix="twopc-kafka-cluster-"))
        ports = free_ports(2 * brokers)
        public = dict(enumerate(ports[:brokers], start=1))
        internal = dict(enumerate(ports[brokers:], start=1))
        voters = ",".join(f"{node}@{HOST}:{port}" for node, port in internal.items())
        cluster_id = new_cluster_id()
        self._nodes = {
            node: LocalKafka(
                version=version,
                data_dir=self.data_dir / str(node),
                cluster_id=cluster_id,
                heap=heap,
                properties={
                    **_replicated(brokers),
                    "node.id": str(node),
                    "listeners": f"PLAINTEXT://{HOST}:{public[node]},CONTROLLER://{HOST}:{internal[node]}",
                    "controller.quorum.voters": voters,
                    **(properties or {}),
                },
            )
            for node in public
        }

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every node, whether it runs or not."""
        return ",".join(node.bootstrap_servers for node in self._nodes.values())

    def __getitem__(self, node: int) -> LocalKafka:
        """The node with that id."""
        return self._nodes[node]

    def __iter__(self) -> Iterator[int]:
        """Every node id."""
        return iter(self._nodes)

    def start(self) -> None:
        """Start the nodes that do not run, together, since none is ready without a majority; and wake paused ones.

        Raises:
            ServiceError: see `LocalKafka.start`.
        """
        down = []
        for node in self._nodes.values():
            if node.is_running:
                node.resume()
            else:
                down.append(node)
        with ThreadPoolExecutor(len(self._nodes)) as pool:
            list(pool.map(LocalKafka.start, down))

    def close(self) -> None:
        """End every node and remove its data. At once: an orderly end would wait for a majority that is ending, too."""
        for node in self._nodes.values():
            node.kill()
            node.close()
        shutil.rmtree(self.data_dir, ignore_errors=True)


def _replicated(brokers: int) -> dict[str, str]:
    """Return the properties that a loss of one broker needs."""
    replicas = min(_ALL_REPLICAS, brokers)
    acknowledging = max(1, replicas - 1)
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(acknowledging),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(acknowledging),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(acknowledging),
    }
