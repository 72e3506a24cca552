"""Anything that a stage cannot check is refused at the start. For each refusal, a test shows a publish that really fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from tests.live.postgres.support import Staging, batch, content, publishing_of, run
from twopc.sinks.postgres.objections import find_objections
from twopc.sinks.postgres.table import read_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    Connection = psycopg.Connection[Any]

_ROWS = batch(id=pa.array([1]), v=pa.array([5]))
_ALREADY = "INSERT INTO target (id, v) VALUES (1, 5)"
_RAISES = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no'; END$$"
_TARGET = "CREATE TABLE target (id int, v int"


@pytest.fixture(autouse=True)
def _ways_to_fail(typed: Connection) -> None:
    run(
        typed,
        "DROP SCHEMA public CASCADE",
        "CREATE SCHEMA public",
        'DROP SCHEMA IF EXISTS "The ""sink\'s" CASCADE',
        _RAISES,
    )


def objections(
    connection: Connection, rows: pa.RecordBatch = _ROWS, mode: Any = "append", **arguments: Any
) -> list[str]:
    return list(find_objections(publishing_of(read_table(connection, "target"), rows, mode, **arguments)))


#: The statement that creates the table, and the object that is refused.
_DANGEROUS = [
    ([f"{_TARGET}, PRIMARY KEY (id))", _ALREADY], "the unique index target_pkey on 'id' may reject a row"),
    ([f"{_TARGET}, UNIQUE (id, v) DEFERRABLE INITIALLY DEFERRED)", _ALREADY], "the unique index target_id_v_key on 'id', 'v'"),
    ([f"{_TARGET})", "CREATE UNIQUE INDEX u ON target ((id + v))", _ALREADY], "the unique index u on an expression"),
    ([f"{_TARGET})", "CREATE UNIQUE INDEX u ON target (id) WHERE v > 0", _ALREADY], "the unique index u on 'id'"),
    (
        ["CREATE TABLE other (id int PRIMARY KEY)", f"{_TARGET} REFERENCES other)"],
        "the foreign key target_v_fkey of target may reject",
    ),
    (
        [f"{_TARGET}, EXCLUDE USING gist (int4range(id, id, '[]') WITH &&))", _ALREADY],
        "the exclusion constraint target_int4range_excl of target may",
    ),
    (
        [f"{_TARGET})", "CREATE TRIGGER t BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION f()"],
        "the trigger t on target runs code on every INSERT",
    ),
    (
        [
            f"{_TARGET})",
            "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON target DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION f()",
        ],
        "the trigger t on target runs code on every INSERT",
    ),
    (
        [
            f"{_TARGET}) PARTITION BY LIST (v)",
            "CREATE TABLE p PARTITION OF target DEFAULT",
            "CREATE TRIGGER t BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION f()",
            "ALTER TABLE ONLY target DISABLE TRIGGER t",
        ],
        "the trigger t on p runs code on every INSERT",
    ),
    (
        [f"{_TARGET}) PARTITION BY LIST (v)", "CREATE TABLE p PARTITION OF target FOR VALUES IN (1)"],
        "the partitioned table target has no default partition",
    ),
    (
        [
            f"{_TARGET}) PARTITION BY LIST (v)",
            "CREATE TABLE p PARTITION OF target DEFAULT PARTITION BY HASH (id)",
            "CREATE TABLE q PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        ],
        "the hash-partitioned table p has no partition for some remainders",
    ),
    (
        [f"{_TARGET}) PARTITION BY LIST (v)", "CREATE TABLE p PARTITION OF target DEFAULT", "ALTER TABLE p ADD CHECK (v < 5)"],
        "the constraint p_v_check of p exists on only one partition",
    ),
    (
        [
            f"{_TARGET}, CONSTRAINT c CHECK (v < 5) NOT ENFORCED) PARTITION BY LIST (v)",
            f"{_TARGET.replace('target', 'p')}, CONSTRAINT c CHECK (v < 5))",
            "ALTER TABLE target ATTACH PARTITION p DEFAULT",
        ],
        "the constraint c of p is enforced only on this partition",
    ),
    (
        [
            f"{_TARGET}, n int) PARTITION BY LIST (v)",
            "CREATE TABLE p PARTITION OF target DEFAULT",
            "ALTER TABLE p ALTER n SET NOT NULL",
        ],
        "a column is NOT NULL in the partition p but nullable in public.target",
    ),
    (
        [
            "CREATE TABLE parent (id int, v int) PARTITION BY LIST (v)",
            "CREATE TABLE target PARTITION OF parent FOR VALUES IN (1)",
        ],
        "public.target is a partition, and its bounds may reject a row",
    ),
    (
        [f"{_TARGET}, n int GENERATED ALWAYS AS IDENTITY CHECK (n > 1))"],
        "uses the identity column 'n', which receives its value only after the decision",
    ),
    (
        [f"{_TARGET}, n serial UNIQUE, twice int GENERATED ALWAYS AS (n * 2) STORED CHECK (twice > 2))"],
        "the computed column public.target.twice uses the serial column 'n', which receives its value only after the decision",
    ),
    (
        [f"{_TARGET}, n int GENERATED ALWAYS AS IDENTITY, ratio int GENERATED ALWAYS AS (10 / (n - 1)) STORED)"],
        "the computed column public.target.ratio uses the identity column 'n', which receives its value only after the decision",
    ),
    (
        [f"{_TARGET}, n int GENERATED ALWAYS AS IDENTITY)", "CREATE INDEX i ON target (id, (10 / (n - 1)))"],
        "the index i uses the identity column 'n', which receives its value only after the decision",
    ),
    (
        [f"{_TARGET}, n int GENERATED ALWAYS AS IDENTITY)", "CREATE INDEX i ON target (n) WHERE 10 / (n - 1) > 0"],
        "the index i uses the identity column 'n', which receives its value only after the decision",
    ),
    (
        [
            f"{_TARGET}, n int GENERATED ALWAYS AS IDENTITY) PARTITION BY LIST (v)",
            "CREATE TABLE p PARTITION OF target DEFAULT PARTITION BY LIST ((10 / (n - 1)))",
            "CREATE TABLE q PARTITION OF p DEFAULT",
        ],
        "the choice of a row's partition in p uses the identity column 'n', which receives its value only after the decision",
    ),
    (
        [
            f"{_TARGET}, n int GENERATED ALWAYS AS IDENTITY) PARTITION BY LIST (n)",
            "CREATE TABLE p PARTITION OF target FOR VALUES IN (1, 2, 3) PARTITION BY LIST ((10 / (v - 5)))",
            "CREATE TABLE q PARTITION OF p DEFAULT",
            "CREATE TABLE rest PARTITION OF target DEFAULT",
        ],
        "the choice of a row's partition in p uses the identity column 'n', which receives its value only after the decision",
    ),
    (
        [
            f"{_TARGET}, n int GENERATED ALWAYS AS (v * 2) STORED) PARTITION BY LIST (v)",
            "CREATE TABLE p PARTITION OF target (n GENERATED ALWAYS AS (10 / (v - 5)) STORED) DEFAULT",
        ],
        "the partition p uses a different expression for a generated column than public.target",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("statements", "refused"), _DANGEROUS, ids=[" ".join(made) for made, _ in _DANGEROUS])
def test_a_table_that_can_reject_a_publish_after_the_decision_is_refused_at_the_start(
    typed: Connection, statements: Sequence[str], refused: str
) -> None:
    run(typed, *statements)
    [objection] = objections(typed)
    assert refused in objection
    assert objections(typed, vote="prepared") == []
    staging = Staging(typed, publishing_of(read_table(typed, "target"), _ROWS))
    txn = staging.stage(_ROWS)
    with pytest.raises(psycopg.Error) as failed:
        staging.publish(txn)
    assert isinstance(failed.value, (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.RaiseException))


@pytest.mark.parametrize(
    "index",
    [
        "((100 / (most - n)))",
        "(n) WHERE 100 / (most - n) > 0",
        "(title, body)",
        "(title) INCLUDE (body)",
        "((title || body))",
    ],
)
def test_an_upsert_of_some_columns_is_refused_if_an_index_covers_both_changed_and_kept_columns(
    typed: Connection, index: str
) -> None:
    """The stage has a copy of the index, but the stage's rows contain other values in the kept columns."""
    half = _WIDE[:700]
    run(
        typed,
        "CREATE TABLE target (id int PRIMARY KEY, n int, most int DEFAULT 100, title text, body text DEFAULT '')",
        f"CREATE INDEX i ON target {index}",
        f"INSERT INTO target VALUES (1, 0, 5, 'a', '{half}')",
    )
    some = batch(id=pa.array([1]), n=pa.array([5]), title=pa.array([half]))
    [objection] = objections(typed, some, mode="upsert", key=("id",))
    assert objection.startswith("the index i uses both columns that an upsert changes and columns that it keeps")
    assert objections(typed, some, mode="upsert", key=("id",), vote="prepared") == []
    staging = Staging(typed, publishing_of(read_table(typed, "target"), some, "upsert", key=("id",)))
    txn = staging.stage(some)
    with pytest.raises(psycopg.Error, match=r"division by zero|index row size"):
        staging.publish(txn)
    whole = some.append_column("most", pa.array([9])).append_column("body", pa.array(["b"]))
    assert objections(typed, whole, mode="upsert", key=("id",)) == []


def test_an_index_is_not_refused_if_an_upsert_keeps_all_of_its_columns_or_changes_all_of_them(
    typed: Connection,
) -> None:
    run(
        typed,
        "CREATE TABLE target (id text PRIMARY KEY, n int, most int, title text, body text, done bool)",
        "ALTER TABLE target ADD words text[], ADD others text[]",
        "CREATE INDEX ON target (id, title)",
        "CREATE INDEX ON target (id, body)",
        "CREATE INDEX ON target (n, most)",
        "CREATE INDEX ON target (lower(title)) WHERE n > 0",
        "CREATE INDEX ON target (lower(body)) WHERE most > 0",
        "CREATE INDEX ON target (n) WHERE body IS NULL",
        "CREATE INDEX ON target (most) WHERE NOT done",
        "CREATE INDEX ON target (most) WHERE n > 0",
        "CREATE INDEX ON target (title, most)",
        "CREATE INDEX ON target USING gin (words, others)",
    )
    some = batch(id=pa.array(["a"]), n=pa.array([5]), title=pa.array(["b"]))
    assert objections(typed, some, mode="upsert", key=("id",)) == []


def test_the_keys_index_on_a_partition_is_refused_if_it_also_stores_a_wide_column(typed: Connection) -> None:
    run(
        typed,
        "CREATE TABLE target (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p PARTITION OF target DEFAULT",
        "CREATE UNIQUE INDEX i ON p (id) INCLUDE (v)",
    )
    [objection] = objections(typed, _WIDE_ROWS, mode="upsert", key=("id",))
    assert objection.startswith("the index i exists on only one partition")
    staging = Staging(typed, publishing_of(read_table(typed, "target"), _WIDE_ROWS, "upsert", key=("id",)))
    txn = staging.stage(_WIDE_ROWS)
    with pytest.raises(psycopg.Error, match="index row"):
        staging.publish(txn)


def test_an_index_on_a_partition_is_not_refused_if_the_stage_has_the_same_index(typed: Connection) -> None:
    """So a wide index on a partition may be built again while a query starts."""
    run(
        typed,
        "CREATE TABLE target (id int, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p PARTITION OF target DEFAULT",
        "CREATE INDEX ON ONLY target (v)",
        "CREATE INDEX i ON p (v)",
    )
    assert objections(typed, _WIDE_ROWS) == []
    staging = Staging(typed, publishing_of(read_table(typed, "target"), _WIDE_ROWS))
    with pytest.raises(psycopg.Error, match="index row"):
        staging.stage(_WIDE_ROWS)


def test_a_brin_index_on_wide_values_is_refused_because_the_stage_has_no_summary(typed: Connection) -> None:
    run(typed, "CREATE TABLE target (id int, v text)", "INSERT INTO target VALUES (0, 'a')")
    run(typed, "CREATE INDEX b ON target USING brin (v)")
    [objection] = objections(typed, _WIDE_ROWS)
    assert objection.startswith("the BRIN index b may reject a row after the decision")
    assert objections(typed, _WIDE_ROWS, vote="prepared") == []
    staging = Staging(typed, publishing_of(read_table(typed, "target"), _WIDE_ROWS))
    txn = staging.stage(_WIDE_ROWS)
    with pytest.raises(psycopg.Error, match="index row"):
        staging.publish(txn)


def test_a_brin_index_that_stores_only_small_values_or_hashes_is_not_refused(typed: Connection) -> None:
    run(
        typed,
        "CREATE TABLE target (id int, v text)",
        "INSERT INTO target VALUES (0, 'a')",
        "CREATE INDEX ON target USING brin (id)",
        "CREATE INDEX ON target USING brin (v text_bloom_ops)",
    )
    assert objections(typed, _WIDE_ROWS) == []
    staging = Staging(typed, publishing_of(read_table(typed, "target"), _WIDE_ROWS))
    staging.publish(staging.stage(_WIDE_ROWS))


def test_the_stage_accepts_every_row_for_which_the_partition_key_can_be_computed(typed: Connection) -> None:
    """The expression's value may be null, or wider than any index accepts."""
    run(
        typed,
        "CREATE TABLE target (id int, v text) PARTITION BY LIST (id)",
        "CREATE TABLE p PARTITION OF target DEFAULT PARTITION BY RANGE (lower(v), (id::text || v) text_pattern_ops)",
        "CREATE TABLE q PARTITION OF p DEFAULT",
    )
    rows = batch(id=pa.array([1, 2]), v=pa.array([_WIDE, None]))
    assert objections(typed, rows) == []
    staging = Staging(typed, publishing_of(read_table(typed, "target"), rows))
    staging.publish(staging.stage(rows))
    assert len(content(typed)) == 2


def test_the_stage_evaluates_the_key_of_a_partition_only_for_the_rows_in_it(typed: Connection) -> None:
    """The expression would fail for rows that go elsewhere: in the next partition, in a deeper one, and without a bound."""
    run(
        typed,
        *_ORDERS.split("; "),
        "CREATE TABLE large PARTITION OF orders FOR VALUES FROM (10) TO (100) PARTITION BY LIST ((1 / (payload->>'d')::int))",
        "CREATE TABLE large_rest PARTITION OF large DEFAULT",
        "CREATE TABLE hashed PARTITION OF target FOR VALUES IN ('hash') PARTITION BY HASH (payload)",
        "CREATE TABLE h PARTITION OF hashed FOR VALUES WITH (MODULUS 1, REMAINDER 0) PARTITION BY LIST ((payload->>'y'))",
        "CREATE TABLE h_rest PARTITION OF h DEFAULT",
    )
    kept = {
        "other": '{"n": "x"}', "order": '{"n": "1", "d": "0"}', "hash": '{"n": "x"}', None: '{"n": "x"}',
    }  # fmt: skip
    rows = batch(kind=pa.array(list(kept)), payload=pa.array(list(kept.values())))
    assert objections(typed, rows) == []
    staging = Staging(typed, publishing_of(read_table(typed, "target"), rows))
    staging.publish(staging.stage(rows))
    assert len(content(typed)) == len(kept)
    for payload in ('{"n": "50", "d": "0"}', '{"n": "x", "d": "1"}'):
        with pytest.raises(psycopg.Error):
            staging.stage(batch(kind=pa.array(["order"]), payload=pa.array([payload])))


def test_a_key_that_all_partitions_share_is_evaluated_once(typed: Connection) -> None:
    run(typed, f"{_TARGET}) PARTITION BY LIST (id)")
    for number, bounds in enumerate(("FOR VALUES IN (0)", "FOR VALUES IN (1)", "DEFAULT")):
        run(
            typed,
            f"CREATE TABLE p{number} PARTITION OF target {bounds} PARTITION BY LIST ((10 / (v - 5)))",
            f"CREATE TABLE q{number} PARTITION OF p{number} DEFAULT",
        )
    staging = Staging(typed, publishing_of(read_table(typed, "target"), _ROWS))
    txn = staging.stage(batch(id=pa.array([1]), v=pa.array([6])))
    stage = staging.statements.stage(txn).as_string()
    checks = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c'"
    [(check,)] = typed.execute(checks, [stage]).fetchall()
    assert check.count("v - 5") == 1
    assert "id" not in check


@pytest.mark.parametrize(
    ("constraint", "name"),
    [
        ("ADD CONSTRAINT c CHECK (n > 0) NOT VALID", "c"),
        ("ADD twice int GENERATED ALWAYS AS (n * 2) STORED, ADD CONSTRAINT c CHECK (twice > 0) NOT VALID", "c"),
        ("ADD CONSTRAINT c NOT NULL word NOT VALID", "c"),
    ],
)
def test_an_upsert_of_some_columns_is_refused_if_an_old_row_may_violate_a_constraint_on_the_others(
    typed: Connection, constraint: str, name: str
) -> None:
    """An update checks the whole row. A stage contains no old rows."""
    run(
        typed,
        f"{_TARGET}, n int DEFAULT 1, word text DEFAULT '', PRIMARY KEY (id))",
        "INSERT INTO target VALUES (1, 1, 0, NULL)",
        f"ALTER TABLE target {constraint}",
    )
    [objection] = objections(typed, mode="upsert", key=("id",))
    assert objection.startswith(f"the constraint {name} of target is NOT VALID and uses columns that an upsert keeps")
    assert objections(typed, mode="upsert", key=("id",), vote="prepared") == []
    whole = _ROWS.append_column("n", pa.array([3])).append_column("word", pa.array(["a"]))
    assert objections(typed, whole, mode="upsert", key=("id",)) == []
    staging = Staging(typed, publishing_of(read_table(typed, "target"), _ROWS, "upsert", key=("id",)))
    txn = staging.stage(_ROWS)
    with pytest.raises(psycopg.IntegrityError):
        staging.publish(txn)
    run(typed, "UPDATE target SET n = 1, word = ''", f"ALTER TABLE target VALIDATE CONSTRAINT {name}")
    assert objections(typed, mode="upsert", key=("id",)) == []
    staging.publish(txn)


def test_a_check_that_a_partition_inherits_from_another_partition_must_be_added_to_the_table(typed: Connection) -> None:
    run(
        typed,
        f"{_TARGET}) PARTITION BY LIST (v)",
        "CREATE TABLE y2026 PARTITION OF target DEFAULT PARTITION BY LIST (id)",
        "CREATE TABLE m01 PARTITION OF y2026 DEFAULT",
        "ALTER TABLE y2026 ADD CONSTRAINT c CHECK (v < 5)",
    )
    assert [objection.partition(". Or pass")[0] for objection in objections(typed)] == [
        f"the constraint c of {where}, so a stage cannot check it. Add the constraint to public.target"
        for where in ("m01 comes from another partition", "y2026 exists on only one partition")
    ]
    run(typed, "ALTER TABLE target ADD CONSTRAINT c CHECK (v < 5)")
    assert objections(typed) == []
    with pytest.raises(psycopg.errors.CheckViolation):
        Staging(typed, publishing_of(read_table(typed, "target"), _ROWS)).stage(_ROWS)


def test_a_check_that_only_the_partitions_enforce_must_be_created_again(typed: Connection) -> None:
    run(
        typed,
        f"{_TARGET}, CONSTRAINT c CHECK (v < 5) NOT ENFORCED) PARTITION BY LIST (v)",
        f"{_TARGET.replace('target', 'p')}, CONSTRAINT c CHECK (v < 5)) PARTITION BY LIST (id)",
        "CREATE TABLE q PARTITION OF p DEFAULT",
        "ALTER TABLE target ATTACH PARTITION p DEFAULT",
    )
    assert [objection.partition(". Or pass")[0] for objection in objections(typed)] == [
        f"the constraint c of {name} is enforced only on this partition, so a stage cannot check it: drop the constraint from "
        "public.target, and add it again without NOT ENFORCED"
        for name in ("p", "q")
    ]
    run(typed, "ALTER TABLE target DROP CONSTRAINT c")
    run(typed, "ALTER TABLE target ADD CONSTRAINT c CHECK (v < 5)")
    assert objections(typed) == []


def test_row_level_security_that_applies_to_the_role_is_refused(typed: Connection) -> None:
    run(
        typed,
        f"{_TARGET})",
        "ALTER TABLE target ENABLE ROW LEVEL SECURITY",
        "DROP ROLE IF EXISTS clerk",
        "CREATE ROLE clerk",
    )
    run(typed, "GRANT ALL ON target TO clerk")
    assert objections(typed) == []  # the superuser is exempt
    run(typed, "GRANT USAGE ON SCHEMA public TO clerk", "SET ROLE clerk")
    [objection] = objections(typed)
    assert objection.startswith("row-level security on public.target applies to the role 'clerk'")
    run(typed, "RESET ROLE", "DROP OWNED BY clerk", "DROP ROLE clerk")


_WIDE = "".join(chr(0x4E00 + n * 7 % 20_000) for n in range(3_000))
_WIDE_ROWS = batch(id=pa.array([1]), v=pa.array([_WIDE]))

_NESTED = f"{_TARGET}) PARTITION BY LIST (id); CREATE TABLE p PARTITION OF target DEFAULT PARTITION BY HASH (v, (10 / (v - 5)))"

#: A table in which only one partition has a key that some rows make fail.
_ORDERS = (
    "CREATE TABLE target (kind text, payload jsonb) PARTITION BY LIST (kind); CREATE TABLE rest PARTITION OF target DEFAULT; "
    "CREATE TABLE orders PARTITION OF target FOR VALUES IN ('order') PARTITION BY RANGE (((payload->>'n')::int)); "
    "CREATE TABLE orders_rest PARTITION OF orders DEFAULT"
)

#: Tables for which the stage finds every row that the table would reject, each with such a row.
_SAFE = [
    (f"{_TARGET}, CHECK (v < 5))", _ROWS),
    (f"{_TARGET}); ALTER TABLE target ADD CHECK (v <> 5) NOT VALID", _ROWS),
    ("CREATE TABLE target (id int, v int, n int NOT NULL DEFAULT 3, CHECK (v < n))", _ROWS),
    ("CREATE TABLE target (id int, v int, n int GENERATED ALWAYS AS (10 / (v - 5)) STORED)", _ROWS),
    ("CREATE TABLE target (id int, v int, n int GENERATED ALWAYS AS (v * 2) STORED CHECK (n < 10))", _ROWS),
    ("CREATE DOMAIN small AS int CHECK (value < 5); CREATE TABLE target (id int, v small)", _ROWS),
    (f"{_TARGET}); CREATE INDEX ON target ((10 / (v - 5)))", _ROWS),
    (f"{_TARGET}); CREATE INDEX ON target (id) WHERE 10 / (v - 5) > 0", _ROWS),
    ("CREATE TABLE target (id int, v text); CREATE INDEX ON target (v)", _WIDE_ROWS),
    ("CREATE TABLE target (id int, v text); CREATE INDEX ON target (id) INCLUDE (v)", _WIDE_ROWS),
    ("CREATE TABLE target (id int, v text[]); CREATE INDEX ON target USING gin (v)", batch(
        id=pa.array([1]), v=pa.array([[_WIDE]]))),
    (f"{_TARGET}, CHECK (v < 5)) PARTITION BY LIST (v); CREATE TABLE p PARTITION OF target DEFAULT", _ROWS),
    (f"{_TARGET}) PARTITION BY RANGE (abs(v), (10 / (v - 5))); CREATE TABLE p PARTITION OF target DEFAULT", _ROWS),
    (f"{_NESTED}; CREATE TABLE q PARTITION OF p FOR VALUES WITH (MODULUS 1, REMAINDER 0)", _ROWS),
    (_ORDERS, batch(kind=pa.array(["order"]), payload=pa.array(['{"n": "x"}']))),
]  # fmt: skip


@pytest.mark.parametrize(("statements", "rows"), _SAFE, ids=[statements for statements, _ in _SAFE])
def test_a_constraint_that_the_stage_checks_is_not_refused_because_a_bad_row_fails_before_the_vote(
    typed: Connection, statements: str, rows: pa.RecordBatch
) -> None:
    run(typed, *statements.split("; "))
    assert objections(typed, rows) == []
    staging = Staging(typed, publishing_of(read_table(typed, "target"), rows))
    with pytest.raises(psycopg.Error):
        staging.stage(rows)
    assert staging.execute(staging.statements.find_slices_without_marker()) == []


@pytest.mark.parametrize(
    "column",
    [
        "n bigserial PRIMARY KEY",
        "n int GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "n int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
        "n uuid DEFAULT gen_random_uuid() PRIMARY KEY",
    ],
)
def test_a_key_generated_by_the_table_is_not_refused(typed: Connection, column: str) -> None:
    run(typed, f"{_TARGET}, {column})", _ALREADY)
    assert objections(typed) == []
    staging = Staging(typed, publishing_of(read_table(typed, "target"), _ROWS))
    staging.publish(staging.stage(_ROWS), staging.stage(_ROWS))
    assert len({row[-1] for row in content(typed)}) == 3


def test_triggers_that_never_fire_at_a_publish_are_not_refused(typed: Connection) -> None:
    run(
        typed,
        f"{_TARGET}, PRIMARY KEY (id))",
        "CREATE TRIGGER a AFTER DELETE OR TRUNCATE ON target FOR EACH STATEMENT EXECUTE FUNCTION f()",
        "CREATE TRIGGER b AFTER INSERT ON target FOR EACH ROW EXECUTE FUNCTION f()",
        "ALTER TABLE target DISABLE TRIGGER b",
    )
    assert objections(typed, mode="upsert", key=("id",)) == []
    run(typed, "CREATE TRIGGER c AFTER UPDATE ON target FOR EACH ROW EXECUTE FUNCTION f()")
    assert "the trigger c on target runs code on every UPDATE" in objections(typed, mode="upsert", key=("id",))[0]


def test_a_trigger_of_a_partitioned_table_is_listed_once(typed: Connection) -> None:
    """A partition's copy of the trigger says nothing new, unless only the copy is enabled."""
    run(
        typed,
        f"{_TARGET}) PARTITION BY LIST (v)",
        "CREATE TABLE p PARTITION OF target DEFAULT PARTITION BY LIST (id)",
        "CREATE TABLE q PARTITION OF p DEFAULT",
        "CREATE TRIGGER t AFTER INSERT ON target FOR EACH ROW EXECUTE FUNCTION f()",
    )
    assert [trigger.table for trigger in read_table(typed, "target").triggers] == ["target"]
    run(typed, "ALTER TABLE ONLY target DISABLE TRIGGER t")
    assert [trigger.table for trigger in read_table(typed, "target").triggers] == ["p"]
    run(typed, "ALTER TABLE ONLY p DISABLE TRIGGER t")
    assert [trigger.table for trigger in read_table(typed, "target").triggers] == ["q"]
    run(typed, "ALTER TABLE target DISABLE TRIGGER t")
    assert objections(typed) == []


def test_a_partitions_own_copy_of_a_trigger_counts_if_the_partition_is_the_target(typed: Connection) -> None:
    run(
        typed,
        "CREATE TABLE parent (id int, v int) PARTITION BY LIST (v)",
        "CREATE TABLE target PARTITION OF parent DEFAULT",
        "CREATE TRIGGER t AFTER INSERT ON parent FOR EACH ROW EXECUTE FUNCTION f()",
    )
    assert [trigger.table for trigger in read_table(typed, "target").triggers] == ["target"]


@pytest.mark.parametrize(
    ("role", "state", "fires"),
    [
        ("origin", "", True),
        ("origin", "REPLICA", False),
        ("local", "", True),
        ("local", "REPLICA", False),
        ("replica", "", False),
        ("replica", "REPLICA", True),
        *[(role, "ALWAYS", True) for role in ("origin", "local", "replica")],
    ],
)
def test_a_trigger_is_refused_exactly_if_it_fires_in_sessions_with_the_roles_replication_role(
    typed: Connection, role: str, state: str, *, fires: bool
) -> None:
    run(
        typed,
        f"{_TARGET})",
        "CREATE TRIGGER t BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION f()",
        f"ALTER TABLE target ENABLE {state} TRIGGER t",
        f"SET session_replication_role = {role}",
    )
    try:
        found = objections(typed)
        staging = Staging(typed, publishing_of(read_table(typed, "target"), _ROWS))
        txn = staging.stage(_ROWS)
        if fires:
            assert "the trigger t on target runs code on every INSERT" in found[0]
            with pytest.raises(psycopg.errors.RaiseException):
                staging.publish(txn)
        else:
            assert found == []
            staging.publish(txn)
    finally:
        run(typed, "RESET session_replication_role")


def test_the_query_continues_while_pg_repack_rebuilds_the_table(typed: Connection) -> None:
    """A stand-in for pg_repack, which is not installed here. Its trigger has this name, function and state (repack.c)."""
    run(typed, f"{_TARGET})")
    before = read_table(typed, "target")
    run(
        typed,
        "CREATE SCHEMA repack",
        "CREATE FUNCTION repack.repack_trigger() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$",
        "CREATE TRIGGER repack_trigger AFTER INSERT OR DELETE OR UPDATE ON target "
        "FOR EACH ROW EXECUTE FUNCTION repack.repack_trigger('id')",
        "ALTER TABLE target ENABLE ALWAYS TRIGGER repack_trigger",
    )
    assert objections(typed) == []
    assert read_table(typed, "target") == before  # else, the running attempt would fail, because the table was altered
    run(typed, "CREATE TRIGGER t AFTER INSERT ON target FOR EACH ROW EXECUTE FUNCTION f()")
    assert "If the trigger belongs to another tool" in objections(typed)[0]


@pytest.mark.parametrize(
    ("statements", "reason", "drop"),
    [
        ([f"{_TARGET})"], "", ""),
        ([f"{_TARGET}, PRIMARY KEY (id, v))"], "", ""),
        ([f"{_TARGET}, UNIQUE (id) DEFERRABLE)"], " (target_id_key is deferrable)", ", drop target_id_key"),
        ([f"{_TARGET})", "CREATE UNIQUE INDEX u ON target (id) WHERE v > 0"], " (u is partial, contains", ""),
    ],
)  # fmt: skip
def test_an_upsert_needs_a_unique_index_on_exactly_its_key(
    typed: Connection, statements: Sequence[str], reason: str, drop: str
) -> None:
    run(typed, *statements)
    found = objections(typed, mode="upsert", key=("id",))
    assert found[0].startswith(
        "ON CONFLICT needs a unique index on exactly the columns (id), but public.target has no usable index of this "
        f"kind{reason}"
    )
    assert found[0].endswith(f": run CREATE UNIQUE INDEX ON public.target (id){drop}, or fix key")


@pytest.mark.parametrize("vote", ["staged", "prepared"])
def test_an_upsert_to_a_table_from_which_another_table_inherits_is_refused(typed: Connection, vote: Any) -> None:
    """The index on the key does not cover the other table's rows, so a reader would find two rows with the same key."""
    run(
        typed,
        f"{_TARGET}, PRIMARY KEY (id))",
        "CREATE TABLE heir () INHERITS (target)",
        "INSERT INTO heir VALUES (1, 9)",
    )
    [objection] = objections(typed, mode="upsert", key=("id",), vote=vote)
    assert objection.startswith(
        "the table heir inherits from public.target, and the unique index on the key does not cover"
    )
    assert objections(typed, vote="prepared") == []
    staging = Staging(typed, publishing_of(read_table(typed, "target"), _ROWS, "upsert", key=("id",)))
    staging.publish(staging.stage(_ROWS))
    assert content(typed, order="v") == [(1, 5), (1, 9)]
    run(typed, "ALTER TABLE heir NO INHERIT target")
    assert objections(typed, mode="upsert", key=("id",), vote=vote) == []


def test_an_upsert_to_a_table_with_any_other_unique_index_is_refused(typed: Connection) -> None:
    run(typed, f"{_TARGET} UNIQUE, PRIMARY KEY (id))")
    [objection] = objections(typed, mode="upsert", key=("id",))
    assert objection.startswith("the unique index target_v_key on 'v' may reject a row after the decision")
    assert "pass the index's columns as key instead, or drop the index" in objection


def test_missing_key_and_order_columns_are_reported(typed: Connection) -> None:
    run(typed, f"{_TARGET}, n int, PRIMARY KEY (id))")
    assert objections(typed, mode="upsert", key=("id",), order_by=("x",)) == [
        "public.target has no column 'x' (it has 'id', 'n', 'v'): fix key and order_by"
    ]
    assert objections(typed, mode="upsert", key=("id",), order_by=("n",)) == [
        "order_by contains 'n', but the DataFrame has no such column: include this column in the DataFrame"
    ]


@pytest.mark.parametrize(("kind", "value"), [("json", "{}"), ("json[]", ["{}"])])
@pytest.mark.parametrize("vote", ["staged", "prepared"])
def test_an_upsert_cannot_order_the_rows_of_a_key_by_a_json_column(
    typed: Connection, kind: str, value: Any, vote: Any
) -> None:
    run(typed, f"CREATE TABLE target (id int PRIMARY KEY, v {kind})")
    rows = batch(id=pa.array([1]), v=pa.array([value]))
    [objection] = objections(typed, rows, mode="upsert", key=("id",), order_by=("v",), vote=vote)
    assert objection.startswith("order_by contains 'v', but PostgreSQL cannot order values of type json")
    staging = Staging(typed, publishing_of(read_table(typed, "target"), rows, "upsert", key=("id",), order_by=("v",)))
    txn = staging.stage(rows)
    with pytest.raises(psycopg.Error, match="could not identify an ordering operator"):
        staging.publish(txn)
    run(typed, f"ALTER TABLE target ALTER v TYPE {kind.replace('json', 'jsonb')} USING NULL")
    assert objections(typed, rows, mode="upsert", key=("id",), order_by=("v",), vote=vote) == []


@pytest.mark.parametrize(
    ("statements", "refused"),
    [
        ([f"{_TARGET})", "ALTER TABLE target RENAME TO t", "CREATE VIEW target AS SELECT * FROM t"], "public.target is a view"),
        ([f"{_TARGET})", "ALTER TABLE target SET UNLOGGED"], "ALTER TABLE public.target SET LOGGED"),
        (
            [
                f"{_TARGET}) PARTITION BY LIST (v)",
                "CREATE TABLE p PARTITION OF target DEFAULT PARTITION BY LIST (id)",
                "CREATE UNLOGGED TABLE q PARTITION OF p DEFAULT",
            ],
            "the partition q of public.target is unlogged, so a server crash deletes all rows in it",
        ),
        ([f"{_TARGET})", "CREATE RULE r AS ON INSERT TO target DO INSTEAD NOTHING"], "the rule 'r' rewrites statements"),
    ],
)  # fmt: skip
def test_a_view_an_unlogged_table_and_a_rewriting_rule_are_refused_under_every_vote(
    typed: Connection, statements: Sequence[str], refused: str
) -> None:
    run(typed, *statements)
    assert any(refused in objection for objection in objections(typed, vote="prepared"))


def test_missing_rights_are_reported(typed: Connection) -> None:
    run(
        typed,
        f"{_TARGET}, PRIMARY KEY (id))",
        "DROP ROLE IF EXISTS clerk",
        "CREATE ROLE clerk",
        "GRANT INSERT ON target TO clerk",
    )
    run(typed, "GRANT USAGE ON SCHEMA public TO clerk", "SET ROLE clerk")
    [objection] = objections(typed, mode="upsert", key=("id",))
    assert objection.startswith(
        "the role 'clerk' does not have SELECT, UPDATE on public.target, which mode='upsert' requires: "
    )
    assert objection.endswith("GRANT SELECT, UPDATE ON public.target TO clerk")
    run(typed, "RESET ROLE", "DROP OWNED BY clerk", "DROP ROLE clerk")


def test_an_index_that_compares_values_differently_does_not_count_as_the_key(
    typed: Connection,
) -> None:
    """Such an index would not detect a duplicate key."""
    like = batch(id=pa.array(["a"]), v=pa.array([1]))
    run(typed, "CREATE TABLE target (id text, v int)", "CREATE UNIQUE INDEX u ON target (id text_pattern_ops)")
    [objection, *_] = objections(typed, like, mode="upsert", key=("id",))
    assert "(u uses a collation or an operator class that differs from the column's)" in objection
    # Any two deterministic collations consider the same values equal.
    run(typed, "DROP INDEX u", 'CREATE UNIQUE INDEX ON target (id COLLATE "POSIX")')
    assert objections(typed, like, mode="upsert", key=("id",)) == []


@pytest.mark.parametrize("state", ["DISABLE", "ENABLE REPLICA"])
def test_an_upsert_to_a_table_with_a_rule_for_updates_is_refused_even_if_the_rule_never_fires(
    typed: Connection, state: str
) -> None:
    run(
        typed,
        f"{_TARGET}, PRIMARY KEY (id))",
        "CREATE RULE r AS ON UPDATE TO target DO ALSO SELECT 1",
        "CREATE RULE s AS ON INSERT TO target DO ALSO SELECT 1",
        f"ALTER TABLE target {state} RULE r",
        "ALTER TABLE target DISABLE RULE s",
    )
    [objection] = objections(typed, mode="upsert", key=("id",), vote="prepared")
    assert objection.startswith("the rule 'r' on public.target is for UPDATE")
    staging = Staging(typed, publishing_of(read_table(typed, "target"), _ROWS, "upsert", key=("id",)))
    txn = staging.stage(_ROWS)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="ON CONFLICT"):
        staging.publish(txn)
    run(typed, "DROP RULE r ON target")
    assert objections(typed, mode="upsert", key=("id",), vote="prepared") == []
    staging.publish(txn)


def test_an_append_to_a_table_whose_rules_are_disabled_is_not_refused(typed: Connection) -> None:
    run(typed, f"{_TARGET})")
    for event in ("INSERT", "UPDATE"):
        run(typed, f"CREATE RULE {event} AS ON {event} TO target DO INSTEAD NOTHING")
        run(typed, f"ALTER TABLE target DISABLE RULE {event}")
    assert objections(typed) == []
    staging = Staging(typed, publishing_of(read_table(typed, "target"), _ROWS))
    staging.publish(staging.stage(_ROWS))
    assert len(content(typed)) == 1


def test_a_published_table_without_a_replica_identity_accepts_no_upserts(typed: Connection) -> None:
    run(typed, f"{_TARGET}, UNIQUE (id))", "CREATE PUBLICATION everything FOR TABLE target", _ALREADY)
    [objection] = objections(typed, mode="upsert", key=("id",), vote="prepared")
    assert objection.startswith("target is published to subscribers and has no replica identity")
    staging = Staging(typed, publishing_of(read_table(typed, "target"), _ROWS, "upsert", key=("id",)))
    with pytest.raises(psycopg.Error, match="replica identity"):
        staging.publish(staging.stage(_ROWS))
    run(typed, "ALTER TABLE target REPLICA IDENTITY FULL")
    assert objections(typed, mode="upsert", key=("id",)) == []
    staging.publish(staging.stage(_ROWS))
    run(typed, "DROP PUBLICATION everything")


@pytest.mark.parametrize("published", ["TABLE target", "TABLE p", "TABLES IN SCHEMA public", None])
def test_a_published_partition_without_a_replica_identity_accepts_no_upserts(
    typed: Connection, published: str | None
) -> None:
    """The table's own replica identity does not count."""
    run(
        typed,
        f"{_TARGET}, UNIQUE (id)) PARTITION BY LIST (id)",
        "CREATE TABLE p PARTITION OF target DEFAULT",
        "ALTER TABLE target REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION everything FOR {published or 'ALL TABLES'}",
        _ALREADY,
    )
    try:
        [objection] = objections(typed, mode="upsert", key=("id",), vote="prepared")
        assert objection.startswith("p is published to subscribers and has no replica identity")
        staging = Staging(typed, publishing_of(read_table(typed, "target"), _ROWS, "upsert", key=("id",)))
        with pytest.raises(psycopg.Error, match="replica identity"):
            staging.publish(staging.stage(_ROWS))
        run(typed, "ALTER TABLE p REPLICA IDENTITY FULL", "ALTER TABLE target REPLICA IDENTITY NOTHING")
        assert objections(typed, mode="upsert", key=("id",)) == []
        staging.publish(staging.stage(_ROWS))
    finally:
        run(typed, "DROP PUBLICATION everything")


_KEYED = f"{_TARGET}, PRIMARY KEY (id))"
#: A published table that rejects every update, the reason, and a statement that removes the reason.
_REJECTING = [
    ([_KEYED], "TABLE target WHERE (v > 3)", "a row filter that uses columns", "ALTER TABLE target REPLICA IDENTITY FULL"),
    (
        [_KEYED, "ALTER TABLE target REPLICA IDENTITY FULL"],
        "TABLE target (id, v)",
        "a column list that does not cover",
        "ALTER TABLE target REPLICA IDENTITY DEFAULT",
    ),
    (
        [_KEYED],
        "TABLE target (v)",
        "a column list that does not cover",
        "ALTER PUBLICATION everything SET TABLE target (id) WHERE (id > 0)",
    ),
    (
        [f"{_TARGET}, PRIMARY KEY (id)) PARTITION BY LIST (id)", "CREATE TABLE p PARTITION OF target DEFAULT"],
        "TABLE target WHERE (v > 3) WITH (publish_via_partition_root = true)",
        "a row filter that uses columns",
        "ALTER TABLE p REPLICA IDENTITY FULL",
    ),
    (
        [
            f"{_TARGET}, n int GENERATED ALWAYS AS (v + 1) STORED, PRIMARY KEY (id))",
            "ALTER TABLE target REPLICA IDENTITY FULL",
        ],
        "TABLE target",
        "its replica identity contains generated columns",
        "ALTER PUBLICATION everything SET (publish_generated_columns = stored)",
    ),
    (
        [
            f"{_TARGET}, n int GENERATED ALWAYS AS (v + 1) VIRTUAL, PRIMARY KEY (id))",
            "ALTER TABLE target REPLICA IDENTITY FULL",
        ],
        "ALL TABLES",
        "its replica identity contains generated columns",
        "ALTER TABLE target REPLICA IDENTITY DEFAULT",
    ),
    (
        [
            f"{_TARGET}, n int GENERATED ALWAYS AS (v + 1) STORED NOT NULL, PRIMARY KEY (id))",
            "CREATE UNIQUE INDEX u ON target (n)",
            "ALTER TABLE target REPLICA IDENTITY USING INDEX u",
        ],
        "TABLE target",
        "its replica identity contains generated columns",
        "ALTER PUBLICATION everything SET TABLE target (id, n)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("statements", "published", "reason", "cure"), _REJECTING, ids=map(str, range(7)))
def test_a_published_table_whose_replica_identity_does_not_fit_the_publication_accepts_no_upserts(
    typed: Connection, statements: Sequence[str], published: str, reason: str, cure: str
) -> None:
    run(typed, *statements, f"CREATE PUBLICATION everything FOR {published}", _ALREADY)
    try:
        staging = Staging(typed, publishing_of(read_table(typed, "target"), _ROWS, "upsert", key=("id",)))
        txn = staging.stage(_ROWS)
        with pytest.raises(psycopg.Error, match="cannot update table"):
            staging.publish(txn)
        [objection] = objections(typed, mode="upsert", key=("id",), vote="prepared")
        assert reason in objection
        run(typed, cure)
        assert objections(typed, mode="upsert", key=("id",), vote="prepared") == []
        staging.publish(staging.stage(_ROWS))
    finally:
        run(typed, "DROP PUBLICATION everything")
