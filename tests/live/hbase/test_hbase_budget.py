"""The cost of a batch for HBase, limited by bounds on its calls, which do not depend on the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.budget import counting_method, require_within
from tests.live.hbase.support import sink_of
from tests.live.staged_budget import APPLY, BEGIN, CONFIRM, STAGE, round_trips
from twopc.sinks.hbase.connection import RegionServer
from twopc.sinks.hbase.mappings import Increment, Put

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.hbase.support import Store

CHUNK = 100
#: Of one task whose rows are one chunk, however many they are.
BUDGET = {Put: {BEGIN: 3, STAGE: 3, CONFIRM: 1, APPLY: 14}, Increment: {BEGIN: 3, STAGE: 5, CONFIRM: 1, APPLY: 15}}
#: What each further chunk adds.
EACH_CHUNK = {Put: {STAGE: 1, APPLY: 3}, Increment: {STAGE: 2, APPLY: 4}}


@pytest.mark.parametrize("kind", BUDGET)
@pytest.mark.parametrize("rows", [1, CHUNK, 4 * CHUNK])
def test_a_batch_takes_a_few_calls_and_a_few_for_each_chunk(
    store: Store, tmp_path: Path, kind: type[Put | Increment], rows: int
) -> None:
    sink = sink_of(store, kind(f"{store.prefix}:{{id}}", {"d:v": "n"}), chunk_rows=CHUNK, timeout_ms=30_000)
    with counting_method(RegionServer, "send_request") as sent:
        found = round_trips(sink, rows, sent, tmp_path)
    further = max(0, rows // CHUNK - 1)
    require_within(found, {step: some + further * EACH_CHUNK[kind].get(step, 0) for step, some in BUDGET[kind].items()})
