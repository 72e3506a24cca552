"""Broken variants of the PostgreSQL sink."""

from __future__ import annotations

from typing import Final

from tests.planted.bug import Bug, one_edit

_ALTERED: Final = "tests/live/postgres/test_altered_columns.py"
_DECIDED: Final = "tests/live/postgres/test_after_the_decision.py"
_KEYS: Final = "tests/live/postgres/test_key_indexes.py"
_LEFT_OUT: Final = "tests/live/postgres/test_left_out_rows.py"
_OBJECTIONS: Final = "tests/live/postgres/test_objections.py"
_TABLE: Final = "tests/live/postgres/test_table.py"


def _bug(name: str, path: str, old: str, new: str, test: str) -> Bug:
    return one_edit(f"PostgreSQL: {name}", 0, f"sinks/postgres/{path}", old, new, model=False, protocol=test)


POSTGRES_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "statements are prepared in a session that a pooler may give to another client",
        "options.py",
        "                prepare_threshold=None,\n",
        "                prepare_threshold=5,\n",
        "tests/live/postgres/test_session_settings.py -k pooler",
    ),
    _bug(
        "a worker and the driver compute different fingerprints of the same table",
        "table.py",
        'events = tuple(event for bit, event in _EVENTS.items() if row["events"] & bit)',
        'events = frozenset(event for bit, event in _EVENTS.items() if row["events"] & bit)',
        f"{_TABLE} -k every_process",
    ),
    _bug(
        "constraints of the same name are read in any order",
        "catalog_queries.py",
        "ORDER BY k.conrelid <> %(oid)s::oid, 2, 3\n",
        "ORDER BY k.conrelid <> %(oid)s::oid, 2\n",
        f"{_TABLE} -k every_time",
    ),
    _bug(
        "an altered column's error names only the first stage",
        "transfer.py",
        'stages = ", ".join(stage for stage, other in altered if other.name == staged.name)',
        "stages = altered[0][0]",
        f"{_ALTERED} -k have_been_converted",
    ),
    _bug(
        "a new column receives the staged values of a dropped column with its name",
        "transfer.py",
        "        numbered = {column.number: column.name for column in table.columns}\n",
        "        numbered = dict(zip(handles[0].numbers, handles[0].columns))\n",
        f"{_DECIDED} -k dropped_column",
    ),
    _bug(
        "a column that is computed from a late number is left to the publish",
        "objections.py",
        "if late := _late(column.sources, publishing):",
        'if late := "":',
        f"{_OBJECTIONS} -k test_a_table_that_can_reject",
    ),
    _bug(
        "an index that is computed from a late number is left to the publish",
        "objections.py",
        "    if late := _late(evaluated, publishing):\n",
        '    if late := "" and evaluated:\n',
        f"{_OBJECTIONS} -k test_a_table_that_can_reject",
    ),
    _bug(
        "a partition key's expression is evaluated only by the publish",
        "statements.py",
        "            if routes := publishing.table.routes:",
        "            if routes := publishing.table.routes[:0]:",
        f"{_OBJECTIONS} -k fails_before_the_vote",
    ),
    _bug(
        "a stage rejects a row because of the key of a partition to which the row does not go",
        "statements.py",
        "CASE WHEN {' OR '.join(bounds)} THEN",
        "CASE WHEN true THEN",
        f"{_OBJECTIONS} -k only_for_the_rows_in_it",
    ),
    _bug(
        "a late number decides whether a partition's key is evaluated",
        "catalog_queries.py",
        "    WHERE (a.attnum = ANY(k.partattrs) AND above.oid::oid <> c.oid) OR a.attnum IN (\n",
        "    WHERE a.attnum IN (\n",
        f"{_OBJECTIONS} -k test_a_table_that_can_reject",
    ),
    _bug(
        "a stage evaluates a key again for each partition",
        "catalog_queries.py",
        "THEN i.inhparent ELSE c.oid\n",
        "THEN c.oid ELSE c.oid\n",
        f"{_OBJECTIONS} -k all_partitions_share",
    ),
    _bug(
        "a partition may compute a column differently from the stage",
        "table.py",
        'if row["computes_otherwise"])',
        "if False)",
        f"{_OBJECTIONS} -k test_a_table_that_can_reject",
    ),
    _bug(
        "an upsert may update a row that violates a NOT VALID constraint",
        "catalog_queries.py",
        "k.convalidated AS is_valid",
        "true AS is_valid",
        f"{_OBJECTIONS} -k old_row_may_violate",
    ),
    _bug(
        "a trigger that is disabled only on the parent is not noticed on a partition",
        "catalog_queries.py",
        "FROM fired t WHERE NOT EXISTS (SELECT FROM fired p WHERE p.oid = t.tgparentid)\n",
        "FROM fired t WHERE t.tgparentid = 0::oid\n",
        f"{_OBJECTIONS} -k test_a_table_that_can_reject",
    ),
    _bug(
        "a partition may enforce a constraint that the stage does not enforce",
        "objections.py",
        'return constraint.is_inherited and (constraint.kind != "c" or checks.get(constraint.name, False))',
        "return constraint.is_inherited and checks is not None",
        f"{_OBJECTIONS} -k test_a_table_that_can_reject",
    ),
    _bug(
        "the advice is to drop a constraint that the table does not have",
        "objections.py",
        "        if constraint.is_inherited and constraint.name in checks:\n",
        "        if constraint.is_inherited:\n",
        f"{_OBJECTIONS} -k inherits_from_another_partition",
    ),
    _bug(
        "every table that the sink cannot create is blamed on an event trigger",
        "errors.py",
        "        if error.sqlstate == _RAISED:\n",
        "        if _meaning(error)[0] is BadRecordError:\n",
        "tests/unit/test_postgres_errors.py -k cannot_create",
    ),
    _bug(
        "the session's replication role does not decide which triggers fire",
        "catalog_queries.py",
        "  AND t.tgenabled::text IN ({_STATES})\n",
        "  AND t.tgenabled::text IN ('A', 'O')\n",
        f"{_OBJECTIONS} -k replication_role",
    ),
    _bug(
        "a disabled rule for updates makes every upsert fail after its decision",
        "catalog_queries.py",
        "r.ev_class = c.oid AND r.ev_type = '2' ORDER BY 1\n",
        "r.ev_class = c.oid AND r.ev_type = '2' AND r.ev_enabled <> 'D' ORDER BY 1\n",
        f"{_OBJECTIONS} -k rule_for_updates",
    ),
    _bug(
        "with prepared votes, the stage rejects rows that a trigger would correct",
        "statements.py",
        'is_last_check = publishing.vote == "staged"',
        "is_last_check = True",
        "tests/live/postgres/test_vote.py -k only_after_a_trigger",
    ),
    _bug(
        "the search path chooses a function that the sink calls",
        "statements.py",
        "AND l.pid <> pg_catalog.pg_backend_pid()",
        "AND l.pid <> pg_backend_pid()",
        "tests/unit/test_postgres_search_path.py -k every_function",
    ),
    _bug(
        "the search path chooses an operator between two types",
        "catalog_queries.py",
        "p.partdefid = 0::oid AS is_unrouted",
        "p.partdefid = 0 AS is_unrouted",
        "tests/live/postgres/test_search_path.py -k described",
    ),
    _bug(
        "an upsert starts although a second index on the key considers other keys equal",
        "objections.py",
        "    for index in publishing.rival_indexes:\n",
        "    for index in publishing.rival_indexes[:0]:\n",
        f"{_KEYS} -k refused_at_the_start",
    ),
    _bug(
        "a default operator class of another type counts as the column's",
        "catalog_queries.py",
        "d.opcintype = a.atttypid AND d.opcdefault AND d.oid <> o.oid",
        "d.opcintype = a.atttypid AND d.opcdefault AND d.oid = o.oid AND NOT o.opcdefault",
        f"{_KEYS} -k considers_other_keys_equal",
    ),
    _bug(
        "a decided upsert uses a new index that considers other keys equal",
        "transfer.py",
        "    if rivals := publishing.rival_indexes:\n",
        "    if rivals := publishing.rival_indexes[:0]:\n",
        f"{_KEYS} -k after_the_decision",
    ),
    _bug(
        "a trigger drops rows of an upsert",
        "transfer.py",
        "        if table.triggers:  # nothing else",
        "        if not table:  # nothing else",
        f"{_LEFT_OUT} -k refused_before_the_decision",
    ),
    _bug(
        "a trigger on inserts drops the update of an existing row",
        "transfer.py",
        "if publishing.changed and not any(",
        "if not publishing.key and not any(",
        f"{_LEFT_OUT} -k update_of_an_existing_row",
    ),
    _bug(
        "a row that a trigger has kept is compared with an operator of another type",
        "statements.py",
        "sql.SQL(equals))",
        'sql.SQL("OPERATOR(pg_catalog.=)" if equals else ""))',
        f"{_LEFT_OUT} -k as_the_keys_index_finds_it",
    ),
    _bug(
        "an upsert ignores the rows of inheriting tables",
        "objections.py",
        'for name in table.heirs if publishing.mode == "upsert" else ():',
        'for name in table.heirs if publishing.mode == "append" else ():',
        f"{_OBJECTIONS} -k another_table_inherits",
    ),
    _bug(
        "a vote that another session is committing blocks the batch",
        "errors.py",
        '"57P", "HY010")',
        '"57P")',
        "tests/live/postgres/test_vote_crashes.py -k lost_session",
    ),
    one_edit(
        "PostgreSQL: a start does not say that the override was not needed",
        0,
        "twopc/other_logs.py",
        "            _tell_unneeded(one)\n",
        "",
        model=False,
        protocol=f"{_DECIDED} -k was_not_needed",
    ),
)
