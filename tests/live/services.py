"""The Kafka that live tests use, chosen by the environment variable `TWOPC_SERVICES`.

- `local` (default): `LocalKafka`, needs no Docker; the only one that tests can pause.
- `docker`: a container of the image in docker-compose.yml, through testcontainers.
- `HOST:PORT[,HOST:PORT…]`: a running Kafka.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from twopc.integration.services.kafka import ONE_NODE_PROPERTIES, LocalKafka, ServiceError
from twopc.integration.services.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPOSE_FILE = Path(__file__).parents[2] / "docker-compose.yml"
_CONTAINER_START_TIMEOUT_S = 120
#: Longer than any pause in a test, so that a paused broker stays registered. If the only broker is not registered, its
#: metadata lists topics but no broker, and a librdkafka client that reads such metadata never connects again
#: (confluentinc/librdkafka#5301).
KEEPS_ITS_SESSION = {"broker.session.timeout.ms": "120000"}


@dataclass(frozen=True)
class KafkaService:
    """A running Kafka. `local` is the broker if this process owns it, else None."""

    bootstrap_servers: str
    local: LocalKafka | None = None


def chosen() -> str:
    return os.environ.get("TWOPC_SERVICES", "local")


@contextlib.contextmanager
def kafka_service(choice: str) -> Iterator[KafkaService]:
    """Yield the chosen Kafka; starts and ends it unless it was already running."""
    if choice == "local":
        with LocalKafka(properties=KEEPS_ITS_SESSION) as kafka:
            yield KafkaService(kafka.bootstrap_servers, kafka)
    elif choice == "docker":
        with _kafka_container() as address:
            yield KafkaService(address)
    elif ":" in choice:
        wait_for_metadata(choice, timeout_s=15)
        yield KafkaService(choice)
    else:
        raise ServiceError(f"TWOPC_SERVICES={choice!r}: use local, docker, or host:port of a running Kafka broker")


def wait_for_metadata(bootstrap_servers: str, timeout_s: float) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        # One request is enough: the client tries to connect until the timeout.
        admin.list_topics(timeout=timeout_s)
    except KafkaException as error:
        raise ServiceError(
            f"no Kafka broker answered at {bootstrap_servers} within {timeout_s:g} s: {error}"
        ) from error


def container_environment(port: int) -> dict[str, str]:
    """The settings of docker-compose.yml for a broker that the host reaches on `port`."""
    return {
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_NODE_ID": "1",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://localhost:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_LOG_DIRS": "/var/lib/kafka/data",
        **{"KAFKA_" + name.upper().replace(".", "_"): value for name, value in ONE_NODE_PROPERTIES.items()},
    }


def compose_image(repository: str) -> str:
    """The repository's image with its tag, as in docker-compose.yml."""
    found = re.search(rf"^\s*image: ({re.escape(repository)}:\S+)$", COMPOSE_FILE.read_text(), re.MULTILINE)
    assert found, f"{COMPOSE_FILE} does not name an image of {repository}"
    return found[1]


@contextlib.contextmanager
def _kafka_container() -> Iterator[str]:
    # Imported here, because the import reads a configuration and looks for Docker, neither of which the other choices
    # need.
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415

    # The broker reports its address to clients, so the port on the host must be known before it starts.
    [port] = free_ports(1)
    container = DockerContainer(compose_image("apache/kafka")).with_bind_ports(9092, port)
    for name, value in container_environment(port).items():
        container = container.with_env(name, value)
    with container:
        wait_for_metadata(f"127.0.0.1:{port}", _CONTAINER_START_TIMEOUT_S)
        yield f"127.0.0.1:{port}"
