"""The HBase that live tests use, chosen by the environment variable `TWOPC_HBASE`.

- `local` (default): `LocalHBase`, needs no Docker; the only one that tests can kill and pause.
- `docker`: a container of the image that docker-compose.yml builds, through testcontainers.
- `HOST:PORT[,HOST:PORT…]`: the ZooKeeper of a running HBase.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.live.services import COMPOSE_FILE
from twopc.integration.services.hbase import LocalHBase, ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCKER_DIRECTORY = COMPOSE_FILE.parent / "docker" / "hbase"
#: The ports of ZooKeeper, the master and the region server. They are the same inside and outside the container, because HBase
#: reports its addresses to clients.
PORTS = (2181, 16000, 16020)
_READY_TIMEOUT_S = 120


@dataclass(frozen=True)
class HBaseService:
    """A running HBase. `local` is the server if this process owns it, else None."""

    zookeeper: str
    local: LocalHBase | None = None


def chosen() -> str:
    return os.environ.get("TWOPC_HBASE", "local")


@contextlib.contextmanager
def hbase_service(choice: str) -> Iterator[HBaseService]:
    """Yield the chosen HBase; starts and ends it unless it was already running."""
    if choice == "local":
        with LocalHBase() as server:
            yield HBaseService(server.zookeeper, server)
    elif choice == "docker":
        with _container() as zookeeper:
            yield HBaseService(zookeeper)
    elif ":" in choice:
        yield HBaseService(choice)
    else:
        raise ServiceError(f"TWOPC_HBASE={choice!r}: use local, docker, or host:port of a running HBase's ZooKeeper")


@contextlib.contextmanager
def _container() -> Iterator[str]:
    # Imported here, because it reads its configuration and looks for Docker, which the other choices do not need.
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
