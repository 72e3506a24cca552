"""When a query starts, find everything that a stage cannot check.

If the table rejects a publish after the decision, the query is blocked. The stage copies the table's column types, defaults,
generated columns, indexes, and CHECK and NOT NULL constraints. The stage also evaluates the partition keys. A task therefore
catches every row that any of these checks would reject. The sink rejects everything that depends on other rows or on code, unless
the driver publishes before it votes (``vote="prepared"``). In a CHECK or an index, the table's owner must not use a function
whose result depends on other rows, on the time, or on the session. The owner must also not change the table while the query runs.

Only the first task detects a partition whose generated column uses a different expression than the table's. To read such an
expression, PostgreSQL locks the table, and a start must not wait for locks (see ``locked`` in :func:`read_table`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.sink import listed
from twopc.sinks.postgres.staged_indexes import (
    columns_rejected_together,
    may_reject,
    may_reject_with_other_rows,
    stages_check,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from twopc.sinks.postgres.publishing import Publishing
    from twopc.sinks.postgres.target import Constraint, Index, Obstacle, Table

_KINDS: Final = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
    "t": "a TOAST table",
}
#: These defaults give every row a different value, which can collide only with a value that was set explicitly.
_EACH_ONCE: Final = ("gen_random_uuid()", "uuidv7()", "uuidv4()")
#: The only type that the sink can write and PostgreSQL cannot sort.
_UNORDERED: Final = frozenset({"json"})
#: The reason why a published table accepts no updates, and what to do.
_OBSTACLES: Final[Mapping[Obstacle, tuple[str, str]]] = {
    "no identity": (
        "and has no replica identity",
        "run ALTER TABLE {name} REPLICA IDENTITY FULL, or REPLICA IDENTITY USING INDEX with the key's index",
    ),
    "column list": (
        "with a column list that does not cover its replica identity",
        (
            "include the replica identity's columns in the publication's column list. With REPLICA IDENTITY FULL, remove the "
            "list, or run ALTER TABLE {name} REPLICA IDENTITY DEFAULT"
        ),
    ),
    "row filter": (
        "with a row filter that uses columns outside its replica identity",
        "run ALTER TABLE {name} REPLICA IDENTITY FULL, or remove the publication's row filter",
    ),
    "generated columns": (
        "and its replica identity contains generated columns, which the publication omits",
        "run ALTER TABLE {name} REPLICA IDENTITY USING INDEX with the key's index",
    ),
}
_INSTEAD: Final = "vote='prepared', so that the table itself checks the rows before the decision"
_RIGHTS: Final = {"append": frozenset({"INSERT", "SELECT"}), "upsert": frozenset({"INSERT", "SELECT", "UPDATE"})}


def find_objections(publishing: Publishing) -> Iterator[str]:
    """Find everything that may make a publish fail after the decision. Each message says what to do.

    Earlier messages may explain later ones.
    """
    yield from _impossible(publishing)
    yield from _key(publishing)
    if publishing.vote == "staged":
        yield from (f"{objection}. Or pass {_INSTEAD}" for objection in _not_staged(publishing))


def _impossible(publishing: Publishing) -> Iterator[str]:
    table = publishing.table
    if table.kind not in {"r", "p"}:
        yield f"{table.title} is {_KINDS.get(table.kind, 'not a table')}: pass a regular or a partitioned table"
    if table.persistence != "p":
        yield (
            f"{table.title} is unlogged, so a server crash deletes all rows, including decided rows: run ALTER TABLE "
            f"{table.title} SET LOGGED"
        )
    if missing := _RIGHTS[publishing.mode].intersection(table.missing_rights):
        rights = ", ".join(sorted(missing))
        yield (
            f"the role {table.role!r} does not have {rights} on {table.title}, which mode={publishing.mode!r} requires: run "
            f"GRANT {rights} ON {table.title} TO {table.role}"
        )
    for column in publishing.left_to_the_table:
        if sequence := column.forbidden_sequence:
            yield (
                f"the role {table.role!r} may not use the sequence {sequence}, which fills {table.title}.{column.name}: run "
                f"GRANT USAGE ON SEQUENCE {sequence} TO {table.role}"
            )
    for name, obstacle in table.rejecting_updates if publishing.mode == "upsert" else ():
        reason, advice = _OBSTACLES[obstacle]
        yield (
            f"{name} is published to subscribers {reason}, so the server rejects every update: {advice.format(name=name)}"
        )
    yield from _rules(publishing)
    for name in table.foreign:
        yield (
            f"the partition {name} of {table.title} is on another server, which does not take part in the commit: detach "
            "the partition, or write to another table"
        )
    for name in table.unlogged:
        yield (
            f"the partition {name} of {table.title} is unlogged, so a server crash deletes all rows in it, including decided "
            f"rows: run ALTER TABLE {name} SET LOGGED"
        )


def _rules(publishing: Publishing) -> Iterator[str]:
    table = publishing.table
    for name in table.rules:
        yield (
            f"the rule {name!r} rewrites statements on {table.title}, so the stored rows would differ from the staged rows: "
            "drop the rule, or write to another table"
        )
    for name in table.update_rules if publishing.mode == "upsert" else ():
        if name not in table.rules:
            yield (
                f"the rule {name!r} on {table.title} is for UPDATE, and PostgreSQL accepts no upserts to a table with such a "
                "rule, even if the rule is disabled: drop the rule, or use mode='append'"
            )


def _key(publishing: Publishing) -> Iterator[str]:
    table, key = publishing.table, publishing.key
    known = {column.name for column in table.columns}
    if missing := [name for name in (*key, *publishing.order_by) if name not in known]:
        yield f"{table.title} has no column {listed(missing)} (it has {listed(sorted(known))}): fix key and order_by"
        return
    if missing := [name for name in publishing.order_by if name not in publishing.written]:
        yield f"order_by contains {listed(missing)}, but the DataFrame has no such column: include this column in the DataFrame"
    if unordered := [name for name in publishing.order_by if table.column(name).type.kind in _UNORDERED]:
        yield (
            f"order_by contains {listed(unordered)}, but PostgreSQL cannot order values of type json, so no batch could "
            "be published: remove the column from order_by, or change its type to jsonb"
        )
    for name in table.heirs if publishing.mode == "upsert" else ():
        yield (
            f"the table {name} inherits from {table.title}, and the unique index on the key does not cover the rows in {name}. "
            f"So an upsert would insert a second row with a key that {name} already contains: run ALTER TABLE {name} NO INHERIT "
            f"{table.title}, or write to a partitioned table, or use mode='append'"
        )
    if publishing.mode == "upsert" and publishing.key_index is None:
        columns = ", ".join(key)
        same = [index for index in table.indexes if index.is_unique and set(index.columns) == set(key)]
        reason = "".join(f" ({why})" for index in same[:1] for why in [_unusable(index)])
        drop = "".join(f", drop {index.name}" for index in publishing.rival_indexes)
        yield (
            f"ON CONFLICT needs a unique index on exactly the columns ({columns}), but {table.title} has no usable index of "
            f"this kind{reason}: run CREATE UNIQUE INDEX ON {table.title} ({columns}){drop}, or fix key"
        )
        return
    for index in publishing.rival_indexes:
        what = f"ON CONFLICT would also use the unique index {index.name} on the key"
        if index.compares_otherwise:
            yield (
                f"{what}, but this index may consider keys equal that differ in {table.title}. So an upsert would update a row "
                f"with another key: drop the index {index.name}"
            )
        else:
            yield (
                f"{what}, but this index is deferrable, and ON CONFLICT accepts no such index. So no upsert could be published: "
                f"drop the constraint of the index {index.name}"
            )


def _unusable(index: Index) -> str:
    if not index.is_own:
        return f"{index.name} belongs to a partition"
    if not index.is_immediate:
        return f"{index.name} is deferrable"
    if not index.is_valid:
        return f"{index.name} is invalid, because its creation failed: rebuild it with REINDEX"
    if index.compares_otherwise:
        return f"{index.name} uses a collation or an operator class that differs from the column's"
    return f"{index.name} is partial, contains an expression, or is not a B-tree"


def _not_staged(publishing: Publishing) -> Iterator[str]:
    table = publishing.table
    yield from filter(None, (_index(index, publishing) for index in table.indexes))
    checks = _own_checks(table)
    for constraint in table.constraints:
        if objection := _constraint(constraint, checks, publishing):
            yield objection
    yield from _computed(publishing)
    fired = {"INSERT", "UPDATE"} if publishing.mode == "upsert" else {"INSERT"}
    for trigger in table.triggers:
        if events := fired.intersection(trigger.events):
            yield (
                f"the trigger {trigger.name} on {trigger.table} runs code on every {' and '.join(sorted(events))}, and this "
                "code may reject rows after the decision: drop or disable the trigger. If the trigger belongs to another tool, "
                "such as a replication tool, stop that tool first, because the tool would miss the rows"
            )
    yield from _partitioned(publishing)
    if table.has_row_security:
        yield (
            f"row-level security on {table.title} applies to the role {table.role!r}, and a policy may reject rows after the "
            "decision: use a role with BYPASSRLS, or the table's owner"
        )


def _index(index: Index, publishing: Publishing) -> str:
    table = publishing.table
    if index.is_unique and index not in publishing.key_indexes and not _is_numbered(index, publishing):
        return _unique(index, publishing)
    if may_reject_with_other_rows(index, table):
        return (
            f"the BRIN index {index.name} may reject a row after the decision, because the values of two rows may together "
            "be too wide for the index: drop the index, or create it with a Bloom operator class (such as text_bloom_ops)"
        )
    if may_reject(index, table) and not stages_check(index, table):
        return (
            f"the index {index.name} exists on only one partition, so a stage has no such index. The stage cannot catch a "
            f"row that the index rejects. Create the index on {table.title}"
        )
    evaluated = (*index.expression_columns, *(index.predicate if index.has_fallible_predicate else ()))
    if late := _late(evaluated, publishing):
        return f"the index {index.name} {late}, or drop the index"
    if _is_mixed(columns_rejected_together(index, table), publishing):
        return (
            f"the index {index.name} uses both columns that an upsert changes and columns that it keeps. After the "
            "decision, the index may reject a row that combines new and old values: include all these columns in the "
            "DataFrame, or drop the index"
        )
    return ""  # the stage has the same index


def _unique(index: Index, publishing: Publishing) -> str:
    columns = listed(index.columns) if not index.has_expressions else "an expression"
    advice = (
        "use mode='upsert' and pass the index's columns as key, or drop the index"
        if publishing.mode == "append"
        else "pass the index's columns as key instead, or drop the index"
    )
    return (
        f"the unique index {index.name} on {columns} may reject a row after the decision, because another row may have the "
        f"same value: {advice}"
    )


def _is_numbered(index: Index, publishing: Publishing) -> bool:
    """Return whether the table gives each row a different value in one of the index's columns."""
    columns = [publishing.table.column(name) for name in index.columns if name not in publishing.written]
    return any(c.is_identity or c.is_numbered or (c.default or "").startswith(_EACH_ONCE) for c in columns)


def _own_checks(table: Table) -> dict[str, bool]:
    """For each CHECK constraint of the table itself, return whether the server enforces it."""
    return {one.name: one.is_enforced for one in table.constraints if one.kind == "c" and one.table_oid == table.oid}


def _constraint(constraint: Constraint, checks: Mapping[str, bool], publishing: Publishing) -> str:
    table = publishing.table
    where = f"{constraint.name} of {constraint.table}"
    is_own = constraint.table_oid == table.oid
    if not constraint.is_enforced or (not is_own and _is_covered(constraint, checks)):
        return ""
    if constraint.kind == "f":
        return (
            f"the foreign key {where} may reject a row after the decision, because the referenced row may no longer "
            "exist: drop the foreign key"
        )
    if constraint.kind == "x":
        return (
            f"the exclusion constraint {where} may reject a row after the decision, because it may conflict with another row: "
            "drop the constraint"
        )
    if not constraint.is_valid and not _with_sources(constraint.columns, table).isdisjoint(publishing.kept):
        return (
            f"the constraint {where} is NOT VALID and uses columns that an upsert keeps. After the decision, an upsert may "
            f"fail on an existing row that violates the constraint: run ALTER TABLE {constraint.table} VALIDATE CONSTRAINT "
            f"{constraint.name}"
        )
    # The checks of triggers and of columns cover constraint triggers and NOT NULL constraints.
    return _check(constraint, checks, publishing) if constraint.kind == "c" else ""


def _is_covered(constraint: Constraint, checks: Mapping[str, bool]) -> bool:
    """Return whether the table itself enforces the constraint that a partition has inherited.

    On PostgreSQL 18, a partition may enforce a CHECK constraint that its parent does not enforce. Both have the same name. A
    partition may also inherit a constraint from another partition.
    """
    return constraint.is_inherited and (constraint.kind != "c" or checks.get(constraint.name, False))


def _check(constraint: Constraint, checks: Mapping[str, bool], publishing: Publishing) -> str:
    table = publishing.table
    where = f"{constraint.name} of {constraint.table}"
    if constraint.table_oid != table.oid:
        if constraint.is_inherited and constraint.name in checks:
            return (
                f"the constraint {where} is enforced only on this partition, so a stage cannot check it: drop the constraint "
                f"from {table.title}, and add it again without NOT ENFORCED"
            )
        origin = "comes from another partition" if constraint.is_inherited else "exists on only one partition"
        return f"the constraint {where} {origin}, so a stage cannot check it. Add the constraint to {table.title}"
    if late := _late(constraint.columns, publishing):
        return f"the constraint {where} {late}, or drop the constraint"
    if _is_mixed(constraint.columns, publishing):
        return (
            f"the constraint {where} uses both columns that an upsert changes and columns that it keeps. After the "
            "decision, a row that combines new and old values may violate the constraint: include all these columns in the "
            "DataFrame, or drop the constraint"
        )
    return ""  # the stage has the same constraint


def _computed(publishing: Publishing) -> Iterator[str]:
    for column in publishing.table.columns:
        where = f"{publishing.table.title}.{column.name}"
        if late := _late(column.sources, publishing):
            yield f"the computed column {where} {late}, or drop the computed column"
        if _is_mixed(column.sources, publishing):
            yield (
                f"{where} is computed from both columns that an upsert changes and columns that it keeps. After the "
                "decision, the computation may fail: include all these columns in the DataFrame"
            )


def _late(columns: Collection[str], publishing: Publishing) -> str:
    """Say which of these columns receive their values only during the publish. The text is empty if there are none."""
    late = [column for column in publishing.left_to_the_table if column.name in columns]
    if not late:
        return ""
    kind = "identity" if all(column.is_identity for column in late) else "serial"
    names = listed([column.name for column in late])
    return (
        f"uses the {kind} column {names}, which receives its value only after the decision. Include this column in the "
        "DataFrame"
    )


def _is_mixed(columns: Iterable[str], publishing: Publishing) -> bool:
    """Return whether an upsert changes some of these columns in an existing row and keeps others."""
    used = _with_sources(columns, publishing.table)
    return not used.isdisjoint(publishing.changed) and not used.isdisjoint(publishing.kept)


def _with_sources(columns: Iterable[str], table: Table) -> set[str]:
    """Return these columns and, for each generated column among them, the columns in its expression."""
    used = set(columns)
    for column in table.columns:
        used |= set(column.sources) if column.name in used else set()
    return used


def _partitioned(publishing: Publishing) -> Iterator[str]:
    table = publishing.table
    if table.is_partition:
        yield (
            f"{table.title} is a partition, and its bounds may reject a row after the decision: write to its parent table"
        )
    for name in table.unrouted:
        yield (
            f"the partitioned table {name} has no default partition, so after the decision, it may reject a row that fits "
            f"no partition: run CREATE TABLE … PARTITION OF {name} DEFAULT"
        )
    for name in table.lacking_remainders:
        yield (
            f"the hash-partitioned table {name} has no partition for some remainders, so it may reject a row after the "
            f"decision: for each missing remainder, run CREATE TABLE … PARTITION OF {name} FOR VALUES WITH (MODULUS …, "
            "REMAINDER …)"
        )
    for name in table.stricter:
        yield (
            f"a column is NOT NULL in the partition {name} but nullable in {table.title}, so the staging table does not check "
            f"that column: make the column NOT NULL in {table.title}, too"
        )
    for name in table.computing_otherwise:
        yield (
            f"the partition {name} uses a different expression for a generated column than {table.title}, so a stage cannot "
            "check the computation: use the same expression in both"
        )
    for route in table.routes:
        if late := _late(route.columns, publishing):
            yield (
                f"the choice of a row's partition in {route.table} {late}, or write to a table with another partition key"
            )
