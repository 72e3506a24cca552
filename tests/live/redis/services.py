"""The Redis that live tests talk to, chosen by the environment variable `TWOPC_REDIS`.

- `local` (default): `LocalRedis`, no Docker needed; the only one that tests may kill and pause.
- `docker`: a container of the image in docker-compose.yml, through testcontainers.
- `redis://…`: a Redis that is already running.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from integration.services.redis import LocalRedis, ServiceError
from tests.live.services import compose_image

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class RedisService:
    """A Redis that is up. `local` is the server when this process owns it, else None."""

    url: str
    local: LocalRedis | None = None


def chosen() -> str:
    return os.environ.get("TWOPC_REDIS", "local")


@contextlib.contextmanager
def redis_service(choice: str) -> Iterator[RedisService]:
    """Give the Redis that `choice` names, started and ended here unless it was running already."""
    if choice == "local":
        with LocalRedis() as server:
            yield RedisService(server.url, server)
    elif choice == "docker":
        with _container() as url:
            yield RedisService(url)
    elif choice.startswith(("redis://", "rediss://")):
        yield RedisService(choice)
    else:
        raise ServiceError(f"TWOPC_REDIS={choice!r}: use local, docker, or the url of a running Redis")


@contextlib.contextmanager
def _container() -> Iterator[str]:
    # Imported here: reading its configuration and finding Docker is of no interest to the other choices.
    from testcontainers.redis import RedisContainer  # noqa: PLC0415

    with RedisContainer(compose_image("valkey/valkey")) as container:
        yield f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}"
