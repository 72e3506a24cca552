"""Mistakes that an operator could make if the commands allowed them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.planted.bug import one_edit

if TYPE_CHECKING:
    from tests.planted.bug import Bug

_ACTS: Final = "integration/operate/acts.py"
_ADVICE: Final = "tests/unit/test_operate_advice.py"
_TWO_CLUSTERS: Final = "tests/live/operate/test_two_clusters.py"
_SAVEPOINT: Final = "tests/unit/test_savepoint.py"

OPERATE_BUGS: Final[tuple[Bug, ...]] = (
    one_edit(
        "an operator may abort what is decided",
        0,
        _ACTS,
        "        if one.standing is Standing.DECIDED:\n",
        "        if one.standing is None:\n",
        model=False,
        protocol=_ADVICE,
    ),
    one_edit(
        "a batch that is decided during a look makes the checkpoint an older copy",
        0,
        "integration/operate/status.py",
        "replace(after, finished=before.finished)",
        "before",
        model=False,
        protocol="tests/unit/test_status_history.py",
    ),
    one_edit(
        "a batch that is finished during a look ran without the sink",
        0,
        "integration/operate/status.py",
        "replace(after, finished=before.finished)",
        "after",
        model=False,
        protocol="tests/unit/test_status_history.py",
    ),
    one_edit(
        "a savepoint is taken of a batch that was never decided",
        0,
        "integration/operate/savepoint.py",
        "        _require_decided(found, finished, sinks)\n",
        "",
        model=False,
        protocol=_SAVEPOINT,
    ),
    one_edit(
        "a restore calls a sink complete that lacks batches",
        0,
        "integration/operate/restore.py",
        """missing_batches(highest, manifest.batch_id, f"sink {sink.name!r}")""",
        "None",
        model=False,
        protocol=_SAVEPOINT,
    ),
    one_edit(
        "a query takes a savepoint after a batch that it has not written",
        0,
        "integration/operate/boundary.py",
        """missing_batches(self._done, self._next - 1, "the output")""",
        "None",
        model=False,
        protocol=_SAVEPOINT,
    ),
    one_edit(
        "an operator may commit an undecided transaction",
        0,
        _ACTS,
        "        if one.standing is not Standing.DECIDED:\n",
        "        if one.standing is None:\n",
        model=False,
        protocol=_ADVICE,
    ),
    one_edit(
        "an operator's abort does not fence the driver first",
        0,
        _ACTS,
        "    if any(one.standing is Standing.RUNNING for one in wanted):\n",
        "    if not wanted:\n",
        model=False,
        protocol="tests/live/operate/test_transactions.py -k notices",
    ),
    one_edit(
        "an operator's force is enough when the decisions could not be read",
        0,
        _ACTS,
        "    if state.problem is not None and wanted and not is_blind:\n",
        "    if not state.sink:\n",
        model=False,
        protocol=_ADVICE,
    ),
    one_edit(
        "decisions on another cluster pass for a damaged ledger",
        0,
        "integration/verify/deciding.py",
        '    if where.cluster not in {"", cluster}:\n',
        "    if not where.log:\n",
        model=False,
        protocol=f"{_TWO_CLUSTERS} -k died",
    ),
    one_edit(
        "a sink's own ledger passes for a ledger of the same name on another cluster",
        0,
        "integration/verify/cluster.py",
        'where.log == self.ledger.name and where.cluster in {"", here}:',
        "where.log == self.ledger.name:",
        model=False,
        protocol=f"{_TWO_CLUSTERS} -k with_the_same_name",
    ),
    one_edit(
        "a ledger that was deleted passes for a ledger on another cluster",
        0,
        "twopc/records.py",
        "            deciding_cluster=claim.deciding_cluster,\n",
        "",
        model=False,
        protocol=f"{_TWO_CLUSTERS} -k same_cluster",
    ),
    one_edit(
        "a checkpoint's sink is looked for on any cluster",
        0,
        "integration/operate/subject.py",
        'facts["cluster"] == self.cluster\n',
        "bool(facts)\n",
        model=False,
        protocol="tests/unit/test_named_sinks.py",
    ),
    one_edit(
        "a start takes a log of the same name on another cluster for the sink's own",
        11,
        "twopc/start.py",
        'decides = last.deciding_log == log.name and last.deciding_cluster in {"", log.cluster}',
        "decides = last.deciding_log == log.name",
        model=False,
        protocol="tests/unit/test_ownership.py",
    ),
    one_edit(
        "a requester that has its answer does not wait for the query",
        0,
        "integration/operate/request.py",
        "while files.read(REQUESTS + name) is not None and",
        "while files.read(ANSWERS + name) is None and",
        model=False,
        protocol=_SAVEPOINT,
    ),
    one_edit(
        "a savepoint has state beyond its batch",
        0,
        "integration/operate/savepoint.py",
        "version[0] <= batch + 1",
        "version[0] <= batch + 2",
        model=False,
        protocol=_SAVEPOINT,
    ),
    one_edit(
        "a savepoint lacks what Spark deleted meanwhile",
        0,
        "integration/operate/savepoint.py",
        '        if not is_old and not file.endswith(".crc"):\n',
        "        if not file:\n",
        model=False,
        protocol=_SAVEPOINT,
    ),
    one_edit(
        "a restored checkpoint keeps the old query's id",
        0,
        "integration/operate/restore.py",
        "_of_query(data, name) if file == _METADATA else data",
        "data",
        model=False,
        protocol=_SAVEPOINT,
    ),
    one_edit(
        "the preflight's producer asks for the letters of its topic",
        0,
        "integration/preflight/steps.py",
        "tid, 0, (trial.topic,), timeout_ms",
        "tid, 0, tuple(trial.topic), timeout_ms",
        model=False,
        protocol="tests/live/operate/test_brokers_that_create_topics.py -k preflight",
    ),
)
