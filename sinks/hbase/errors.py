"""Decide which HBase errors to retry, and give advice for the others."""

from __future__ import annotations

import re
from typing import Final

from twopc.errors import BadRecordError, ConfigurationError
from twopc.sinks.staged.client import remedies


class RemoteError(Exception):
    """A server returned an error.

    Attributes:
        kind: the name of the Java class, without its package.
    """

    def __init__(self, kind: str, text: str) -> None:
        # The server's stack trace follows the first line.
        super().__init__(text.partition("\n")[0] or kind)
        self.kind = kind.rpartition(".")[2]


class AbsentTableError(Exception):
    """The table does not exist."""


#: All errors that a call may raise or receive as its response.
FAILURES: Final = (RemoteError, AbsentTableError, OSError)
#: These errors mean that the server is starting, stopping or busy, or that it does not yet serve the region, or no
#: longer serves it. A retry may succeed.
_TRANSIENT: Final = re.compile(
    r"NotServingRegion|RegionMoved|RegionOpening|RegionServerStopped|RegionServerAborted|RegionServerRunning|"
    r"ServerNotRunning|PleaseHold|MasterNotRunning|MasterStopped|CallQueueTooBig|CallDropped|RegionTooBusy|RegionInRecovery|"
    r"WrongRegion|MultiActionResultTooLarge|TimeoutIO|CallTimeout|NotAllMetaRegionsOnline|RetryImmediately|"
    r"^IOException|StoppedRpcClient|ScannerReset|UnknownScanner|RpcThrottling|DroppedSnapshot|ServerTooBusy"
)
_IGNORED: Final = "ConditionIgnored"
REMEDIES: Final = remedies(
    (
        _IGNORED,
        ConfigurationError,
        "Upgrade all servers to HBase 2.4 or newer. If the row is in the data table, check whether its values are correct",
    ),
    ("AbsentTableError", ConfigurationError, "Create the table, or check the name"),
    ("AccessDenied|AccessControl", ConfigurationError, "Grant the user the permissions that docs/hbase.md lists"),
    (
        "FatalConnection|BadAuth|Sasl",
        ConfigurationError,
        "The cluster requires Kerberos, which the sink does not support",
    ),
    ("NoSuchColumnFamily", ConfigurationError, "Create the column family, or correct the mapping"),
    ("exceeds limit", BadRecordError, "Increase hbase.server.keyvalue.maxsize, or make the row smaller"),
    (
        "not a long|not a counter",
        BadRecordError,
        "The cell does not contain a counter. Correct the cell's value, or use another column",
    ),
)


def ignored_condition(row: bytes) -> RemoteError:
    """Build the error for a server that ignores conditions in ``Multi``.

    At each start, a test in the sink's own table detects such a server before any data is written.
    """
    return RemoteError(
        _IGNORED, f"HBase is older than 2.4 and ignored a condition, so row {row!r} was changed unconditionally"
    )


def is_transient(answer: object) -> bool:
    """Return whether a response is an error that may disappear after a retry."""
    if isinstance(answer, RemoteError):
        return _TRANSIENT.search(answer.kind) is not None
    return isinstance(answer, OSError)
