"""Describe a run: its machine, versions, date and load."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil

from twopc.counted import counted
from twopc.integration.services.jar_sets import DEFAULT_KAFKA_VERSION
from twopc.integration.services.java import java_command

_ROOT = Path(__file__).parents[1]
_PACKAGES = ("spark-twopc", "pyspark", "confluent-kafka", "pyarrow", "redis", "hbase-driver", "psycopg")
#: What ``git describe --dirty`` appends to the commit.
_DIRTY = "-dirty"
_NO_VERSIONS = {"date", "commit", "cores", "memory GiB", "processor", "system", "load at the start", "settings"}


def heading(settings: dict[str, Any]) -> dict[str, Any]:
    """Collect the facts about this machine and this run.

    Args:
        settings: the settings for ``exactly_once()`` that differ from its defaults.
    """
    return {
        "date": dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
        "commit": _commit(),
        "cores": os.cpu_count(),
        "memory GiB": round(psutil.virtual_memory().total / 2**30),
        "processor": _processor(),
        "system": platform.platform(aliased=True, terse=True),
        "load at the start": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "java": _java(),
        "kafka": os.environ.get("TWOPC_KAFKA", DEFAULT_KAFKA_VERSION),
        "librdkafka": confluent_kafka.libversion()[0],
        **{name: _version(name) for name in _PACKAGES},
        "settings": settings or "the defaults",
    }


def measured_when(heading: dict[str, Any], rounds: int) -> str:
    """Say when and how often a group was measured."""
    commit, changes, _ = heading["commit"].partition(_DIRTY)
    changed = changes and " with uncommitted changes"
    return f"The benchmark ran on {heading['date']} at commit {commit}{changed}, in {counted(rounds, 'round')}."


def has_changes(heading: dict[str, Any]) -> bool:
    """Whether the run measured code that no commit contains. Nobody can repeat such a run."""
    return str(heading["commit"]).endswith(_DIRTY)


def in_words(heading: dict[str, Any]) -> str:
    """Describe the machine, the versions and the settings."""
    *others, last = [f"{name} {value}" for name, value in heading.items() if name not in _NO_VERSIONS]
    versions = f"{', '.join(others)} and {last}" if others else last
    return (
        f"The machine had {heading['cores']} cores ({heading['processor']}) and {heading['memory GiB']} GiB of memory. The load "
        f"average at the start was {heading['load at the start']}, and the system was {heading['system']}. The versions were "
        f"{versions}. The settings were {heading['settings']}."
    )


def _commit() -> str:
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    try:
        names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    return names[0].strip() if names else platform.machine()


def _java() -> str:
    done = subprocess.run([java_command(), "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'"([\d.]+)', done.stderr)
    return found[1] if found else "unknown"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
