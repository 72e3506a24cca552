"""The HBase that live tests talk to, chosen by the environment variable `TWOPC_HBASE`.

- `local` (default): `LocalHBase`, no Docker needed; the only one that tests may kill and pause.
- `docker`: a container of the image that docker-compose.yml makes, through testcontainers.
- `HOST:PORT[,HOST:PORT…]`: ZooKeeper of an HBase that is already running.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from integration.services.hbase import LocalHBase, ServiceError
from tests.live.services import COMPOSE_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCKER_DIRECTORY = COMPOSE_FILE.parent / "docker" / "hbase"
#: Of ZooKeeper, master and region server, inside the container as outside: HBase tells clients its addresses.
PORTS = (2181, 16000, 16020)
_READY_TIMEOUT_S = 120


@dataclass(frozen=True)
class HBaseService:
    """An HBase that is up. `local` is the server when this process owns it, else None."""

    zookeeper: str
    local: LocalHBase | None = None


def chosen() -> str:
    return os.environ.get("TWOPC_HBASE", "local")


@contextlib.contextmanager
def hbase_service(choice: str) -> Iterator[HBaseService]:
    """Give the HBase that `choice` names, started and ended here unless it was running already."""
    if choice == "local":
        with LocalHBase() as server:
            yield HBaseService(server.zookeeper, server)
    elif choice == "docker":
        with _container() as zookeeper:
            yield HBaseService(zookeeper)
    elif ":" in choice:
        yield HBaseService(choice)
    else:
        raise ServiceError(
            f"TWOPC_HBASE={choice!r}: use local, docker, or host:port of the ZooKeeper of a running HBase"
        )


@contextlib.contextmanager
def _container() -> Iterator[str]:
    # Imported here: reading its configuration and finding Docker is of no interest to the other choices.
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415
    from testcontainers.core.image import DockerImage  # noqa: PLC0415
    from testcontainers.core.waiting_utils import wait_for_logs  # noqa: PLC0415

    with DockerImage(path=DOCKER_DIRECTORY, tag="twopc-hbase") as image:
        container = DockerContainer(str(image))
        for port in PORTS:
            container = container.with_bind_ports(port, port)
        with container:
            wait_for_logs(container, "Master has completed initialization", timeout=_READY_TIMEOUT_S)
            yield f"127.0.0.1:{PORTS[0]}"
