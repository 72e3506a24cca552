"""What the sink's user may do in HBase, under HBase's own access controller."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import pytest

from tests.live.hbase.support import Store, sink_of, until
from tests.live.one_task import apply, batch
from twopc.attempt import Evidence
from twopc.errors import ConfigurationError
from twopc.integration.services.hbase import LocalHBase
from twopc.sinks.hbase.mappings import Increment, Put
from twopc.sinks.hbase.row_ops import Op, put
from twopc.sinks.hbase.staging import families
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONTROLLER = "org.apache.hadoop.hbase.security.access.AccessController"
_PROPERTIES = {
    "hbase.security.authorization": "true",
    "hbase.superuser": "tests",
    "hbase.coprocessor.master.classes": _CONTROLLER,
    "hbase.coprocessor.region.classes": _CONTROLLER,
    "hbase.coprocessor.regionserver.classes": _CONTROLLER,
}
_USER = "writer"


@pytest.fixture
def guarded() -> Iterator[Store]:
    """An HBase in which only the user `tests` may do everything."""
    with LocalHBase(properties=_PROPERTIES) as server, contextlib.closing(Store(server.zookeeper)) as store:
        store.create_table()
        yield store


def grant(store: Store, table: str, rights: bytes) -> None:
    """Grant rights to the sink's user, as the shell's `grant` does."""
    row = table.encode()
    mutation = put(row, {(b"l", _USER.encode()): rights})
    assert store.client.execute([Op("hbase:acl", row, mutations=(mutation,))]) == [True]


@pytest.mark.whole
def test_a_user_who_may_only_read_and_write_can_start_and_is_told_what_was_not_checked(
    guarded: Store, caplog: pytest.LogCaptureFixture
) -> None:
    guarded.create_table("twopc", families=families())
    sink = sink_of(guarded, Increment("{id}", {"d:v": "n"}), user=_USER)
    rows = batch(id=[1], n=[1])

    def may_write() -> bool:
        """The region servers learn of the rights a moment later, and never if the access controller cannot publish a grant.

        It only logs such a failure (``AccessController.updateACL``), for example if it cannot read its own new table yet.
        """
        for table in ("twopc", guarded.table):
            grant(guarded, table, b"RW")
        with contextlib.suppress(ConfigurationError), contextlib.closing(sink.create_committer()) as committer:
            committer.inspect()
            return True
        return False

    until(may_write)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "twopc"):
        assert apply(sink, rows) == [Evidence.COMMITTED]
    [warning] = caplog.messages
    assert "TTL" in warning
    with pytest.raises(ConfigurationError, match=r"zz.*Create the column family"):
        Driver(sink_of(guarded, Put("{id}", {"zz:v": "n"}), user=_USER))
    with pytest.raises(ConfigurationError, match=r"'nowhere' does not exist"):
        Driver(sink_of(guarded, Put("{id}", {"d:v": "n"}), user=_USER, table="nowhere"))
    with pytest.raises(ConfigurationError, match=r"action=CREATE.*Grant the user the permissions"):
        Driver(sink_of(guarded, Put("{id}", {"d:v": "n"}), user=_USER, staging_table="new"))
