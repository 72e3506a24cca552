"""Several Kafka brokers without Docker; each can be killed, paused and restarted.

`with LocalKafkaCluster() as cluster: cluster[2].kill()`. Each node is a `LocalKafka`, broker and controller. All nodes form
the controller quorum, so the cluster works while a majority of them runs.
"""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from integration.services.jar_sets import DEFAULT_KAFKA_VERSION
from integration.services.kafka import LocalKafka, new_cluster_id
from integration.services.lifecycle import Startable
from integration.services.ports import HOST, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["LocalKafkaCluster"]

_ALL_REPLICAS = 3


class LocalKafkaCluster(Startable):
    """Brokers that replicate to each other and end with this process. Node ids start at 1.

    By default a topic has one replica per broker, at most three, and acknowledges a record once all but one replica have it:
    an acknowledged record survives the loss of any one node.

    Attributes:
        data_dir: holds one directory per node, with its `broker.log`.
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
            brokers: number of nodes.
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
        """`host:port` of every node, running or not."""
        return ",".join(node.bootstrap_servers for node in self._nodes.values())

    def __getitem__(self, node: int) -> LocalKafka:
        """The node with this id."""
        return self._nodes[node]

    def __iter__(self) -> Iterator[int]:
        """All node ids."""
        return iter(self._nodes)

    def start(self) -> None:
        """Start the nodes that are down, in parallel because none is ready without a majority; resume paused ones.

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
        """Kill every node and remove its data. An orderly shutdown would wait for a majority that is going away too."""
        for node in self._nodes.values():
            node.kill()
            node.close()
        shutil.rmtree(self.data_dir, ignore_errors=True)


def _replicated(brokers: int) -> dict[str, str]:
    """Return the properties with which the cluster survives the loss of one broker."""
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
