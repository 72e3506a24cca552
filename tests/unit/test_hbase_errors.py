"""Which of a server's errors are retried: as in HBase's own client, all but those that say that a retry is useless."""

from __future__ import annotations

import pytest

from twopc.errors import ConfigurationError, RetriableError, TwoPhaseCommitError, UnavailableError
from twopc.sinks.hbase.client import HBaseClient
from twopc.sinks.hbase.cluster import Cluster
from twopc.sinks.hbase.errors import RemoteError, ignored_condition

CLIENT = HBaseClient(Cluster("h:1", user="u", timeout_s=1), timeout_s=1)
HBASE = "org.apache.hadoop.hbase."

#: A server that is starting, stopping, busy or dying returns these errors.
PASSING = (
    HBASE + "NotServingRegionException",
    HBASE + "exceptions.RegionMovedException",
    HBASE + "exceptions.RegionOpeningException",
    HBASE + "RegionTooBusyException",
    HBASE + "CallQueueTooBigException",
    HBASE + "CallDroppedException",
    HBASE + "PleaseHoldException",
    HBASE + "PleaseRestartMasterException",
    HBASE + "MasterNotRunningException",
    HBASE + "NotAllMetaRegionsOnlineException",
    HBASE + "exceptions.MasterStoppedException",
    HBASE + "ipc.ServerNotRunningYetException",
    HBASE + "regionserver.RegionServerStoppedException",
    HBASE + "regionserver.RegionServerAbortedException",
    HBASE + "regionserver.WrongRegionException",
    HBASE + "regionserver.wal.DamagedWALException",
    HBASE + "regionserver.wal.WALSyncTimeoutIOException",
    HBASE + "regionserver.wal.FailedLogCloseException",
    HBASE + "DroppedSnapshotException",
    HBASE + "UnknownScannerException",
    HBASE + "exceptions.ScannerResetException",
    HBASE + "exceptions.TimeoutIOException",
    HBASE + "quotas.RpcThrottlingException",
    HBASE + "MultiActionResultTooLarge",
    HBASE + "HBaseIOException",
    HBASE + "YouAreDeadException",
    "java.io.IOException",
    "java.io.InterruptedIOException",
    "java.io.EOFException",
    "java.nio.channels.ClosedChannelException",
    "org.apache.hadoop.ipc.RemoteException",
)

FINAL: dict[str, tuple[type[TwoPhaseCommitError], str]] = {
    HBASE + "DoNotRetryIOException": (ConfigurationError, "2.4 or newer"),
    HBASE + "client.DoNotRetryRegionException": (ConfigurationError, "2.4 or newer"),
    HBASE + "exceptions.FailedSanityCheckException": (ConfigurationError, "2.4 or newer"),
    HBASE + "exceptions.UnknownProtocolException": (ConfigurationError, "2.4 or newer"),
    HBASE + "ipc.UnknownServiceException": (ConfigurationError, "2.4 or newer"),
    HBASE + "ipc.UnsupportedCellCodecException": (ConfigurationError, "2.4 or newer"),
    HBASE + "ipc.WrongVersionException": (ConfigurationError, "2.4 or newer"),
    HBASE + "TableNotEnabledException": (ConfigurationError, "2.4 or newer"),
    HBASE + "security.AccessDeniedException": (ConfigurationError, "permissions"),
    "org.apache.hadoop.security.AccessControlException": (ConfigurationError, "permissions"),
    HBASE + "ipc.BadAuthException": (ConfigurationError, "Kerberos"),
    "javax.security.sasl.SaslException": (ConfigurationError, "Kerberos"),
    HBASE + "regionserver.NoSuchColumnFamilyException": (ConfigurationError, "column family"),
    HBASE + "NamespaceNotFoundException": (ConfigurationError, "Create the namespace"),
    HBASE + "quotas.QuotaExceededException": (RetriableError, "Raise the quota"),
    HBASE + "quotas.SpaceLimitingException": (RetriableError, "Raise the quota"),
}


@pytest.mark.parametrize("name", PASSING)
def test_an_error_that_may_pass_is_retried(name: str) -> None:
    error = RemoteError(name, "boom")
    assert CLIENT.is_transient(error)
    assert type(CLIENT.translate(error, "sink 's'")) is UnavailableError


@pytest.mark.parametrize("name", FINAL)
def test_an_error_that_hbase_says_not_to_retry_is_reported_at_once(name: str) -> None:
    kind, advice = FINAL[name]
    error = RemoteError(name, "boom")
    assert not CLIENT.is_transient(error)
    with pytest.raises(kind, match=f"boom.*{advice}") as raised:
        raise CLIENT.translate(error, "sink 's'")
    assert type(raised.value) is kind


def test_an_ignored_condition_is_reported_at_once() -> None:
    assert not CLIENT.is_transient(ignored_condition(b"row"))
