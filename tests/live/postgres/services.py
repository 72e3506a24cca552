"""The PostgreSQL that live tests use, chosen by the environment variable `TWOPC_POSTGRES`.

- `local` (default): `LocalPostgres`, needs no Docker; the only one that tests can kill and pause.
- `docker`: a container of the image in docker-compose.yml, through testcontainers.
- `postgresql://…`: a running PostgreSQL, with a user who may create databases and roles.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.live.services import compose_image
from twopc.integration.services.postgres import LocalPostgres, ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: As in docker-compose.yml: `PREPARE TRANSACTION` needs free slots, and the default is none.
OPTIONS: Mapping[str, str] = {"max_prepared_transactions": "50"}


@dataclass(frozen=True)
class PostgresService:
    """A running PostgreSQL. `local` is the server if this process owns it, else None."""

    dsn: str
    local: LocalPostgres | None = None


def chosen() -> str:
    return os.environ.get("TWOPC_POSTGRES", "local")


@contextlib.contextmanager
def postgres_service(choice: str) -> Iterator[PostgresService]:
    """Yield the chosen PostgreSQL; starts and ends it unless it was already running."""
    if choice == "local":
        with LocalPostgres(options=OPTIONS) as server:
            yield PostgresService(server.dsn, server)
    elif choice == "docker":
        with _container() as dsn:
            yield PostgresService(dsn)
    elif choice.startswith(("postgresql://", "postgres://")):
        yield PostgresService(choice)
    else:
        raise ServiceError(f"TWOPC_POSTGRES={choice!r}: use local, docker, or the url of a running PostgreSQL server")


@contextlib.contextmanager
def _container() -> Iterator[str]:
    # Imported here, because it reads its configuration and looks for Docker, which the other choices do not need.
    from testcontainers.postgres import PostgresContainer  # noqa: PLC0415

    container = PostgresContainer(compose_image("postgres"), username="postgres", dbname="postgres", driver=None)
    words = [word for name, value in OPTIONS.items() for word in ("-c", f"{name}={value}")]
    with container.with_command(["postgres", *words]):
        yield container.get_connection_url()
