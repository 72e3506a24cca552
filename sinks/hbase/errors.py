"""HBase's errors: which of them call for a retry, and the others as this project's."""

from __future__ import annotations

import re
from typing import Final

from twopc.errors import BadRecordError, ConfigurationError, RetriableError, TwoPhaseCommitError


class RemoteError(Exception):
    """A server answered with an error.

    Attributes:
        kind: the Java class, without its package.
    """

    def __init__(self, kind: str, text: str) -> None:
        # The server's stack trace follows the first line.
        super().__init__(text.partition("\n")[0] or kind)
        self.kind = kind.rpartition(".")[2]


class AbsentTableError(Exception):
    """There is no such table."""


#: All errors that a call raises or is answered with.
FAILURES: Final = (RemoteError, AbsentTableError, OSError)
#: The server starts, stops, is busy, or does not serve the region: another one will, or this one will soon.
_TRANSIENT: Final = re.compile(
    r"NotServingRegion|RegionMoved|RegionOpening|RegionServerStopped|RegionServerAborted|RegionServerRunning|"
    r"ServerNotRunning|PleaseHold|MasterNotRunning|MasterStopped|CallQueueTooBig|CallDropped|RegionTooBusy|RegionInRecovery|"
    r"WrongRegion|MultiActionResultTooLarge|TimeoutIO|CallTimeout|NotAllMetaRegionsOnline|RetryImmediately|"
    r"^IOException|StoppedRpcClient|ScannerReset|UnknownScanner|RpcThrottling|DroppedSnapshot|ServerTooBusy"
)
_REMEDIES: Final[tuple[tuple[re.Pattern[str], type[TwoPhaseCommitError], str], ...]] = (
    (re.compile("AccessDenied|AccessControl"), ConfigurationError, "Give the user the rights that docs/hbase.md lists"),
    (re.compile("FatalConnection|BadAuth|Sasl"), ConfigurationError, "The cluster requires Kerberos, which is not supported"),
    (re.compile("NoSuchColumnFamily"), ConfigurationError, "Create the family, or correct the mapping"),
    (re.compile("exceeds limit"), BadRecordError, "Raise hbase.server.keyvalue.maxsize, or make the row smaller"),
    (re.compile("not a long|not a counter"), BadRecordError, "The column does not hold a counter"),
)  # fmt: skip


def is_transient(answer: object) -> bool:
    """Whether an answer is an error that a retry may clear."""
    if isinstance(answer, RemoteError):
        return _TRANSIENT.search(answer.kind) is not None
    return isinstance(answer, OSError)


def translate(error: object, what: str) -> TwoPhaseCommitError:
    """The error to raise for a failure before the decision.

    Args:
        error: what a call raised or was answered with.
        what: sink and step; the message begins with it.
    """
    text = f"{what}: {error or type(error).__name__}"
    if isinstance(error, AbsentTableError):
        return ConfigurationError(f"{text}. Create it, or correct the name")
    if is_transient(error):
        return RetriableError(text)
    for pattern, kind, remedy in _REMEDIES:
        if pattern.search(f"{getattr(error, 'kind', '')} {error}"):
            return kind(f"{text}. {remedy}")
    return ConfigurationError(f"{text}. HBase rejects the call: check that it is 2.4 or newer")
