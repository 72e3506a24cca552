"""Copy a topic to another with Flink SQL and its KafkaSink, exactly once, in its own environment."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.peers.environment import python_with, run_query
from benchmarks.peers.jars import FLINK_CONNECTOR, peer_jars

NAME: Final = "Flink, exactly once"
REQUIREMENT: Final = "apache-flink==2.3.0"
_SCRIPT: Final = Path(__file__).with_name("flink_query.py")


def run(bootstrap_servers: str, source: str, output: str) -> None:
    """Copy all of the topic's records.

    Raises:
        MissingError: Flink cannot be installed or run.
    """
    connector = peer_jars(FLINK_CONNECTOR)[0]
    run_query(python_with(REQUIREMENT), _SCRIPT, bootstrap_servers, source, output, str(connector))
