"""Mistakes in what `twopc status --sinks` says about the stores of sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.planted.bug import one_edit

if TYPE_CHECKING:
    from tests.planted.bug import Bug

_STORES: Final = "integration/operate/stores.py"
_ADVICE: Final = "integration/operate/store_advice.py"
_RULES: Final = "tests/unit/test_store_advice.py"
_LIVE: Final = "tests/live/stores/test_store_status.py"


def _bug(name: str, path: str, old: str, new: str, caught_by: str) -> Bug:
    return one_edit(f"status: {name}", 0, path, old, new, model=False, protocol=caught_by)


STORE_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "a batch that is only staged counts as published",
        "integration/operate/store_state.py",
        "self.batch - 1 if self.lost or self.waiting else self.batch",
        "self.batch",
        _RULES,
    ),
    _bug(
        "an older copy of the checkpoint is healthy",
        _STORES,
        "is_ahead=seen.is_ahead and is_comparable and is_owner",
        "is_ahead=False",
        "tests/unit/test_stores.py -k stays_ahead",
    ),
    _bug(
        "a store that was set back is healthy",
        _STORES,
        "is_behind=seen.is_behind and is_comparable and is_own",
        "is_behind=False",
        f"{_LIVE}::test_a_store_that_returned_to_an_earlier_state_is_detected[delta]",
    ),
    _bug(
        "a store that was set back to an earlier owner is that query's store",
        _STORES,
        "is_behind=seen.is_behind and is_comparable and is_own",
        "is_behind=seen.is_behind and is_comparable and is_own and is_owner",
        "tests/unit/test_stores.py -k before_a_takeover",
    ),
    _bug(
        "status offers EndQuery to a query that was replaced",
        _STORES,
        "return bool(scan_start and is_replaced(seen.record, query_id, scan_start))",
        "return False",
        "tests/unit/test_stores.py -k another_query_has_replaced",
    ),
    _bug(
        "a running query is judged by a single look",
        _STORES,
        "if not urgent or (urgent, newest) == before or state.problem is not None:",
        "if urgent is not None:",
        "tests/unit/test_stores.py -k between_two_observations",
    ),
    _bug(
        "two looks at a query that overtakes both call it an older copy",
        _STORES,
        "newest = state.batch if state.is_ahead else None",
        "newest = None",
        "tests/unit/test_stores.py -k overtakes_each",
    ),
    _bug(
        "a problem that grows with each batch is never confirmed",
        _STORES,
        "urgent = {one.anchor for",
        "urgent = {one.what for",
        "tests/unit/test_stores.py -k grow_with_each",
    ),
    _bug(
        "the checkpoint is read only once",
        "integration/operate/status.py",
        "        found = read_checkpoint(location)\n",
        "        found = subject.checkpoint\n",
        "tests/unit/test_status_stores.py",
    ),
    _bug(
        "--idle accepts a decided batch that is not visible",
        "integration/operate/status.py",
        "allowed = {Urgency.NONE} if is_ending else {Urgency.NONE, Urgency.WATCH}",
        "allowed = {Urgency.NONE, Urgency.WATCH}",
        "tests/live/stores/test_store_status.py -k idle",
    ),
    _bug(
        "--idle accepts a batch that Spark has not finished",
        "integration/operate/status.py",
        "    if planned != finished:\n",
        "    if planned is None:\n",
        "tests/live/stores/test_store_status.py -k idle",
    ),
    _bug(
        "--idle accepts sinks that were not examined",
        "integration/operate/status.py",
        "sorted(set(seen.checkpoint.sinks) - examined)",
        "sorted(set(seen.checkpoint.sinks) & examined & set())",
        "tests/live/operate/test_status.py -k idle",
    ),
    _bug(
        "an error of the user's sink is quoted with its password",
        _STORES,
        "could not be observed: {unquoted(error)}",
        "could not be observed: {error}",
        "tests/unit/test_stores.py -k reported_without_its_text",
    ),
    _bug(
        "a sink that joined later is compared with decisions that do not name it",
        _STORES,
        "is_comparable = scan_start is not None",
        "is_comparable = True",
        "tests/unit/test_stores.py -k joined_after",
    ),
    _bug(
        "a store without its control record is one that is ahead or behind",
        _ADVICE,
        "    if bound is not None and not record.id:\n",
        "    if record is None:\n",
        _RULES,
    ),
    _bug(
        "a recreated table is not noticed",
        "integration/operate/store_state.py",
        "return changed_facts(self.bound, self.seen.bound)",
        "return []",
        _RULES,
    ),
    _bug(
        "the transactions of another history are called lost",
        _ADVICE,
        "        return [misfit]\n",
        "        return [misfit, *_of_decision(state, state.seen)]\n",
        _RULES,
    ),
    _bug(
        "rows that the table's history lacks are not noticed",
        "integration/operate/store_state.py",
        "or (stored[version] < rows and version in complete))",
        ")",
        f"{_LIVE}::test_a_batch_with_rows_other_than_the_decided_ones_is_detected[delta]",
    ),
    _bug(
        "a commit that maintenance has cleaned up counts as lost rows",
        "integration/operate/store_state.py",
        "stored[version] < rows and version in complete",
        "stored[version] < rows",
        f"{_RULES} -k differ",
    ),
    _bug(
        "Delta: the table's history does not name the decision",
        "sinks/delta/step.py",
        '"twopc.version": self.published.version',
        '"twopc.version": self.published.epoch',
        f"{_LIVE}::test_a_batch_with_rows_other_than_the_decided_ones_is_detected[delta]",
    ),
    _bug(
        "an error of the user's code is quoted with its password",
        "integration/operate/named_sinks.py",
        "{type(error).__name__} in {where.filename}",
        "{error!r} in {where.filename}",
        "tests/unit/test_named_sinks.py",
    ),
    _bug(
        "a generator of the user's code runs where its errors are quoted",
        "integration/operate/named_sinks.py",
        "sinks = tuple(given) if isinstance(given, Iterable) else (given,)  # a generator also runs the user's code\n",
        "sinks = given if isinstance(given, Iterable) else (given,)\n",
        "tests/unit/test_named_sinks.py",
    ),
    _bug(
        "PostgreSQL: a look locks the control record",
        "sinks/postgres/committer.py",
        "return self._load(step, locked=False)",
        "return self._load(step, locked=True)",
        f"{_LIVE}::test_a_check_fences_no_driver_and_writes_nothing[postgres]",
    ),
    _bug(
        "PostgreSQL: lost rows of a decided batch count as staged",
        "twopc/fenced_committer.py",
        "evidence=evidence | dict.fromkeys(lost, Evidence.ABORTED)",
        "evidence=evidence",
        f"{_LIVE}::test_lost_rows_of_a_decided_batch_are_detected[postgres]",
    ),
    _bug(
        "Redis: lost rows of a decided batch count as staged",
        "sinks/staged/committer.py",
        "    SliceState.LOST: Evidence.ABORTED,\n",
        "",
        f"{_LIVE}::test_lost_rows_of_a_decided_batch_are_detected[redis_counters]",
    ),
    _bug(
        "a lakehouse table: lost files of a decided batch count as staged",
        "sinks/lake/committer.py",
        "evidence=evidence | dict.fromkeys(lost, Evidence.ABORTED)",
        "evidence=evidence",
        f"{_LIVE}::test_lost_rows_of_a_decided_batch_are_detected[iceberg]",
    ),
    _bug(
        "a lakehouse table: an observer overlooks staged files",
        "sinks/lake/committer.py",
        "self._driver_epoch if self._run else record.driver_epoch",
        "self._driver_epoch",
        f"{_LIVE}::test_an_undecided_batch_is_distinguished_from_a_decided_one_and_continues[delta]",
    ),
    _bug(
        "Iceberg: a rolled-back branch is not noticed",
        "sinks/iceberg/history.py",
        "            return False\n        at = ",
        "            return None\n        at = ",
        f"{_LIVE}::test_a_rolled_back_table_is_detected[iceberg]",
    ),
    _bug(
        "Delta: a restored table is not noticed",
        "sinks/delta/history.py",
        "if at < version:",
        "if at > version:",
        f"{_LIVE}::test_a_rolled_back_table_is_detected[delta]",
    ),
    one_edit(
        "an id that an operator has written with a line break counts as torn",
        0,
        "twopc/register_id.py",
        '_BY_HAND: Final = re.compile(rb"([0-9a-f]{32})\\s*")',
        '_BY_HAND: Final = re.compile(rb"([0-9a-f]{32})")',
        protocol="tests/unit/test_torn_files.py -k id_of_the_registers",
        model=False,
    ),
    one_edit(
        "Redis: the error for a user without permission for CLUSTER SLOTS says that the server is not a cluster",
        0,
        "sinks/redis/errors.py",
        "or the user may not run CLUSTER SLOTS. In the first case",
        "In the first case",
        protocol="tests/live/redis/test_rights.py -k slots",
        model=False,
    ),
    one_edit(
        "the alert for a dead driver comes after decided transactions have expired",
        0,
        "integration/alerts/rules.py",
        "for_s: float = 300.0",
        "for_s: float = 1_800.0",
        protocol="tests/unit/test_alerts.py -k by_default",
        model=False,
    ),
    one_edit(
        "an operator who may not commit is not told which permission is missing",
        0,
        "integration/operate/acts.py",
        "    if report == NOT_AUTHORIZED:\n",
        "    if not report:\n",
        protocol="tests/live/test_security_rights.py -k commit",
        model=False,
    ),
    one_edit(
        "PostgreSQL: the trigger of pg_repack stops the query",
        0,
        "sinks/postgres/catalog_queries.py",
        "  AND (s.nspname, f.proname) <> ('repack', 'repack_trigger')\n",
        "",
        model=False,
        protocol="tests/live/postgres/test_objections.py -k pg_repack",
    ),
    one_edit(
        "PostgreSQL: a failover in progress stops the query",
        0,
        "sinks/postgres/errors.py",
        """    "25006": (
        UnavailableError,""",
        """    "25006": (
        ConfigurationError,""",
        model=False,
        protocol="tests/live/postgres/test_causes.py -k standby",
    ),
    one_edit(
        "Kafka: no task warns of rows that the broker may delete soon",
        0,
        "sinks/kafka/writer.py",
        "        warn_of_old_rows(self._settings, rows, self._fit_batches(rows))\n",
        "        self._fit_batches(rows)\n",
        model=False,
        protocol="tests/live/test_kafka_old_rows.py",
    ),
    one_edit(
        "PostgreSQL: a connection from before a failover stops the query",
        0,
        "sinks/postgres/database.py",
        "            raise ReadOnlyError(text_of(error)) from error\n",
        "            raise\n",
        model=False,
        protocol="tests/live/postgres/test_causes.py -k standby",
    ),
    one_edit(
        "Kafka: a row that is not old enough hides a later row that is",
        0,
        "sinks/kafka/old_rows.py",
        "        if retention_ms is not None and age_ms > retention_ms and key not in _warned:\n            _warned.add(key)\n",
        "        is_new, _ = key not in _warned, _warned.add(key)\n"
        "        if retention_ms is not None and age_ms > retention_ms and is_new:\n",
        model=False,
        protocol="tests/live/test_kafka_old_rows.py -k later",
    ),
)
