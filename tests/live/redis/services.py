"""The Redis that live tests use, chosen by the environment variable `TWOPC_REDIS`.

- `local` (default): `LocalRedis`, needs no Docker; the only one that tests can kill and pause.
- `docker`: a container of the image in docker-compose.yml, through testcontainers.
- `redis://…`: a running Redis.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.live.services import compose_image
from twopc.integration.services.redis import LocalRedis, ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class RedisService:
    """A running Redis. `local` is the server if this process owns it, else None."""

    url: str
    local: LocalRedis | None = None


def chosen() -> str:
    return os.environ.get("TWOPC_REDIS", "local")


@contextlib.contextmanager
def redis_service(choice: str) -> Iterator[RedisService]:
    """Yield the chosen Redis; starts and ends it unless it was already running."""
    if choice == "local":
        with LocalRedis() as server:
            yield RedisService(server.url, server)
    elif choice == "docker":
        with _container() as url:
            yield RedisService(url)
    elif choice.startswith(("redis://", "rediss://")):
        yield RedisService(choice)
    else:
        raise ServiceError(f"TWOPC_REDIS={choice!r}: use local, docker, or the url of a running Redis server")


@contextlib.contextmanager
def _container() -> Iterator[str]:
    # Imported here, because it reads its configuration and looks for Docker, which the other choices do not need.
    from testcontainers.redis import RedisContainer  # noqa: PLC0415

    with RedisContainer(compose_image("valkey/valkey")) as container:
        yield f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}"
