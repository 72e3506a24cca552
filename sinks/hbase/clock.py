"""Compare a driver's clock with HBase's clock, because versions come from the driver's clock and are used as timestamps.

A sink's versions never decrease. So if a driver's clock is ahead once, the timestamps of the sink's cells stay ahead of HBase's
clock. These cells then hide the cells of other clients and of other sinks, and nobody notices.
"""

from __future__ import annotations

import logging
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from twopc.errors import ConfigurationError
from twopc.sinks.hbase.row_ops import Op, cells_of, delete, look, put
from twopc.sinks.hbase.staging import STATE, own_row

if TYPE_CHECKING:
    from twopc.sinks.hbase.client import HBaseClient
    from twopc.sinks.hbase.row_ops import Column

logger = logging.getLogger(__name__)

#: Synchronized clocks differ by much less, and the timestamps of a large batch are only a few seconds ahead.
_TOLERANCE_MS: Final = 60_000
_CELL: Final[Column] = (STATE, b"now")


def read_server_clock(client: HBaseClient, *, table: str, sink: str) -> int:
    """Return the time in ms at which a region server has just written a cell of the sink's own table.

    The cell is in a new row. In an existing row, the read might return a cell from a time when the server's clock was ahead.
    """
    row = own_row(sink, f"clock/{uuid.uuid4().hex}")
    client.execute_one(Op(table, row, mutations=(put(row, {_CELL: b"1"}),)))
    at_ms = cells_of(client.execute_one(look(table, row, [_CELL])))[_CELL].timestamp_ms
    client.execute_one(Op(table, row, mutations=(delete(row, up_to_ms=at_ms),)))
    return at_ms


def require_not_ahead(sink: str, *, here_ms: int, server_ms: int) -> None:
    """Check that this host's clock is not far ahead of HBase's clock.

    Raises:
        ConfigurationError: this host's clock is far ahead.
    """
    if (ahead_ms := here_ms - server_ms) > _TOLERANCE_MS:
        raise ConfigurationError(
            f"sink {sink!r}: this host's clock is {_seconds(ahead_ms)} s ahead of HBase's clock. The sink's cells would have "
            "timestamps in the future, and would hide later writes of other clients and of sinks with another name. No data "
            "is at risk: nothing was written to the data table. Synchronize the clocks of this host and of the region "
            "servers (NTP). Then restart the query"
        )


def require_not_behind(sink: str, *, here_ms: int, server_ms: int) -> None:
    """Check that HBase's clock is not far ahead of this host's clock, because a new sink's timestamps begin at HBase's time.

    Raises:
        ConfigurationError: HBase's clock is far ahead.
    """
    if (behind_ms := server_ms - here_ms) > _TOLERANCE_MS:
        raise ConfigurationError(
            f"sink {sink!r}: this host's clock is {_seconds(behind_ms)} s behind the clock of one of HBase's region "
            "servers. A new sink takes its first timestamp from this server's clock. If that clock is wrong, the sink's "
            "cells would hide later writes of other clients. No data is at risk: nothing was written to the data table. "
            "Synchronize the clocks of this host and of the region servers (NTP). Then restart the query"
        )


def warn_if_ahead(sink: str, *, version: int, server_ms: int, table: str, own_table: str) -> None:
    """Warn if the sink's newest version is far ahead of HBase's clock, because a driver's clock was once ahead."""
    if (ahead_ms := version - server_ms) > _TOLERANCE_MS:
        logger.warning(
            "sink %r: the timestamps of this sink are %d s ahead of HBase's clock, because a driver's clock was once ahead. This "
            "sink still writes every row correctly. But for the next %s (h:mm:ss), its cells and deletions in table %r "
            "hide what other clients write to the same cells. During this time, keep the sink's name and its rows in table "
            "%r, because readers would not see the cells of a sink with a new name",
            sink,
            _seconds(ahead_ms),
            timedelta(seconds=_seconds(ahead_ms)),
            table,
            own_table,
        )


def _seconds(ms: int) -> int:
    return ms // 1000
