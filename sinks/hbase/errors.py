"""Decide which HBase errors to retry, and give advice for the others."""

from __future__ import annotations

import re
from typing import Final

from twopc.errors import BadRecordError, ConfigurationError, RetriableError
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
_IGNORED: Final = "ConditionIgnored"
#: The Java classes of errors that a retry does not clear: HBase's subclasses of ``DoNotRetryIOException``, and the errors that
#: reject the user. Like HBase's own client, the sink retries all other errors, because a server that is starting, stopping or
#: dying may return any of them. A few subclasses are missing here, because they only mean that a master is starting or
#: stopping, or that a scan must begin again.
_FINAL: Final = re.compile(
    rf"^({_IGNORED}|DoNotRetry|AccessDenied|AccessControl|Sasl|FatalConnection|BadAuth|EmptyServiceName|UnknownService|UnknownProtocol|"
    r"Unsupported|WrongVersion|Table(Exists|NotFound|NotEnabled|NotDisabled)|Namespace(Exist|NotFound)|"
    r"ConcurrentTableModification|NoSuchColumnFamily|InvalidFamilyOperation|FailedSanityCheck|Constraint|Coprocessor|"
    r"RowTooBig|RequestTooBig|CorruptHFile|QuotaExceeded|SpaceLimiting|Throttling|InvalidLabel)"
)
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
    ("NamespaceNotFound", ConfigurationError, "Create the namespace, or check the table's name"),
    (
        "QuotaExceeded|SpaceLimiting",
        RetriableError,
        "Raise the quota of the table, the namespace or the user (set_quota in the HBase shell)",
    ),
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


def is_denied(error: RemoteError) -> bool:
    """Return whether the user lacks a permission."""
    return error.kind == "AccessDeniedException"


def is_transient(answer: object) -> bool:
    """Return whether a response is an error that may disappear after a retry."""
    if isinstance(answer, RemoteError):
        return _FINAL.search(answer.kind) is None
    return isinstance(answer, OSError)
