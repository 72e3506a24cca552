"""docker-compose.yml cannot be run everywhere; what can be said about it without Docker is said here."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess

import pytest

from integration.jars import DEFAULT_KAFKA_VERSION
from tests.live.services import COMPOSE_FILE, compose_image, container_environment


def test_the_broker_has_the_settings_of_the_local_one() -> None:
    entries = re.findall(r'^ {6}(KAFKA_\w+): "?([^"\n]*)"?$', COMPOSE_FILE.read_text(), re.MULTILINE)
    assert dict(entries) == container_environment(port=9092)
    assert compose_image() == f"apache/kafka:{DEFAULT_KAFKA_VERSION}"


def test_ports_are_bound_to_this_machine_only() -> None:
    assert re.findall(r'^ {6}- "(\S+:\d+:\d+)"$', COMPOSE_FILE.read_text(), re.MULTILINE) == ["127.0.0.1:9092:9092"]


@pytest.mark.skipif(importlib.util.find_spec("yaml") is None, reason="no YAML parser is installed")
def test_it_is_yaml_with_a_health_check_for_every_service() -> None:
    yaml = importlib.import_module("yaml")
    services = yaml.safe_load(COMPOSE_FILE.read_text())["services"]
    assert all("healthcheck" in service for service in services.values())


def test_docker_compose_accepts_it() -> None:
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("the docker compose plugin is not installed")
    done = subprocess.run(
        [docker, "compose", "-f", COMPOSE_FILE, "config", "--quiet"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
