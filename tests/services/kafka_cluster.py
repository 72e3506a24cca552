"""Three Kafka brokers without Docker; each can be killed, paused and restarted.

`with LocalKafkaCluster() as cluster: cluster[2].kill()`. Each node is a `LocalKafka`, broker and controller. All nodes form
the controller quorum, so the cluster works while two of them run.
"""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from twopc.integration.services.kafka import LocalKafka, new_cluster_id
from twopc.integration.services.ports import HOST, free_ports
from twopc.integration.services.server import Startable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["LocalKafkaCluster"]

_BROKERS = 3
_HEAP = "320m"
_REPLICATED: Mapping[str, str] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}
"""By default a topic has a replica on each broker, and acknowledges a record once two have it."""


class LocalKafkaCluster(Startable):
    """Brokers that replicate to each other and end with this process. Node ids start at 1.

    An acknowledged record survives the loss of any one node.

    Attributes:
        data_dir: holds one directory per node, with its `broker.log`.
    """

    def __init__(self) -> None:
        """Describe a cluster; nothing is started yet."""
        self.data_dir = Path(tempfile.mkdtemp(prefix="twopc-kafka-cluster-"))
        ports = free_ports(2 * _BROKERS)
        public = dict(enumerate(ports[:_BROKERS], start=1))
        internal = dict(enumerate(ports[_BROKERS:], start=1))
        voters = ",".join(f"{node}@{HOST}:{port}" for node, port in internal.items())
        cluster_id = new_cluster_id()
        self._nodes = {
            node: LocalKafka(
                data_dir=self.data_dir / str(node),
                cluster_id=cluster_id,
                heap=_HEAP,
                properties={
                    **_REPLICATED,
                    "node.id": str(node),
                    "listeners": f"PLAINTEXT://{HOST}:{public[node]},CONTROLLER://{HOST}:{internal[node]}",
                    "controller.quorum.voters": voters,
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
        """Iterate over all node ids."""
        return iter(self._nodes)

    def start(self) -> None:
        """Start the nodes that are down, in parallel because none is ready without a majority; resume paused ones."""
        with ThreadPoolExecutor(len(self._nodes)) as pool:
            list(pool.map(lambda node: node.resume() if node.is_running else node.start(), self._nodes.values()))

    def close(self) -> None:
        """Kill every node and remove its data. An orderly shutdown would wait for a majority that is ending, too."""
        for node in self._nodes.values():
            node.kill()
            node.close()
        shutil.rmtree(self.data_dir, ignore_errors=True)
