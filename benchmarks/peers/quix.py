"""Copy a topic to another with a Quix Streams ``Application``, exactly once, in its own environment."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.peers.environment import python_with, run_query

NAME: Final = "Quix Streams, exactly once"
REQUIREMENT: Final = "quixstreams==3.28.1"
_SCRIPT: Final = Path(__file__).with_name("quix_query.py")


def run(bootstrap_servers: str, source: str, output: str, rows: int) -> None:
    """Copy this number of records.

    Raises:
        MissingError: Quix Streams cannot be installed or run.
    """
    run_query(python_with(REQUIREMENT), _SCRIPT, bootstrap_servers, source, output, str(rows))
