"""A server that is too old to check conditions is reported as such."""

from __future__ import annotations

from typing import Any

import pytest

from twopc.errors import ConfigurationError
from twopc.sinks.hbase.client import HBaseClient, _read
from twopc.sinks.hbase.cluster import Cluster
from twopc.sinks.hbase.messages import client_pb
from twopc.sinks.hbase.row_ops import where_equal, write

PLACE = b"t", b"c"


def answer_to(**result: Any) -> Any:
    """What the client reads from this result of a conditional write."""
    answers: list[Any] = [None]
    op = write("t", b"row", {PLACE: b"1"}, at_ms=1, condition=where_equal(b"row", PLACE, None))
    _read([op], [0], client_pb.RegionActionResult(**result), answers)
    return answers[0]


@pytest.mark.parametrize("held", [True, False])
def test_the_result_of_a_conditional_request_is_read(*, held: bool) -> None:
    assert answer_to(processed=held) is held


def test_a_server_that_ignores_conditions_is_reported_as_too_old() -> None:
    """HBase 2.3 and older look only at the condition of the whole request, and leave out the result of each part."""
    client = HBaseClient(Cluster("h:1", user="u", timeout_s=1), timeout_s=1)
    answer = answer_to()
    assert not client.is_transient(answer)
    with pytest.raises(
        ConfigurationError,
        match=r"ignored a condition, so row b'row' was changed.*Upgrade all servers to HBase 2\.4 or newer",
    ):
        raise client.translate(answer, "sink 's', acquiring it")
