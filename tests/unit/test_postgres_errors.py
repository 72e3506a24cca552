"""What a PostgreSQL error means: before the decision, after it, and at a start, which may follow a decision."""

from __future__ import annotations

import re

import psycopg
import pytest

from twopc.errors import ConfigurationError, FatalError, UnavailableError
from twopc.sinks.postgres.errors import NotPreparedError, TookTooLongError, creating_tables, explained, reason

_FULL = psycopg.errors.DiskFull('could not write to file "pg_wal/xlogtemp.7": No space left on device')
_SAID = (
    'could not write to file "pg_wal/xlogtemp.7": No space left on device. A disk on the server is full: free space, and start '
    "the server if it has shut down"
)


@pytest.mark.parametrize(
    ("where", "risk"),
    [
        ({}, "No part of this attempt is decided or visible"),
        (
            {"is_start": True},
            "This start wrote no rows. A batch that was already decided stays decided, and the next start completes it",
        ),
    ],
)
def test_an_error_says_what_happened_what_to_do_and_whether_data_is_at_risk(where: dict[str, bool], risk: str) -> None:
    error = explained(_FULL, "sink 'orders', confirming", **where)
    assert (type(error), str(error)) == (UnavailableError, f"sink 'orders', confirming: {_SAID}. {risk}")


def test_the_reason_given_for_a_blocked_batch_says_what_to_do() -> None:
    assert reason(_FULL) == _SAID
    assert reason(psycopg.OperationalError("FATAL: the database system is in recovery mode")).endswith(
        "is starting or stopping"
    )


def test_only_a_transaction_that_cannot_be_prepared_is_blamed_on_its_triggers() -> None:
    unsupported = psycopg.errors.FeatureNotSupported("INSERT with ON CONFLICT clause cannot be used with this table")
    assert type(explained(unsupported, "sink 'orders', publishing")) is ConfigurationError
    assert "not support" in reason(unsupported)
    assert not re.search("vote|trigger|NOTIFY", reason(unsupported))
    assert "no trigger may use NOTIFY" in reason(NotPreparedError("cannot PREPARE a transaction"))


@pytest.mark.parametrize(
    ("error", "kind", "advice"),
    [
        (TookTooLongError("no response within timeout_ms=60000"), UnavailableError, "raise timeout_ms"),
        (psycopg.errors.SequenceGeneratorLimitExceeded("nextval"), ConfigurationError, "ALTER SEQUENCE"),
        (psycopg.errors.StatementTooComplex("stack depth limit exceeded"), FatalError, "raise max_stack_depth"),
        (psycopg.errors.ConfigurationLimitExceeded("temporary file size"), UnavailableError, "temp_file_limit"),
    ],
)
def test_the_advice_for_a_limit_names_the_limit_and_blames_neither_the_network_nor_a_row(
    error: psycopg.Error, kind: type[Exception], advice: str
) -> None:
    assert type(explained(error, "sink 'orders', confirming")) is kind
    assert advice in reason(error)
    assert not re.search("not reachable|row|disk space", reason(error))


@pytest.mark.parametrize(
    ("error", "words", "blames_a_trigger"),
    [
        (psycopg.errors.RaiseException("no tables here"), "no tables here. ", True),
        (psycopg.errors.UniqueViolation("duplicate key"), "duplicate key (SQLSTATE 23505). ", False),
        (psycopg.errors.TooManyColumns("at most 1600 columns"), "at most 1600 columns (SQLSTATE 54011). ", False),
        (psycopg.errors.DivisionByZero("division by zero"), "division by zero (SQLSTATE 22012). ", False),
    ],
)
def test_a_table_that_the_sink_cannot_create_blames_no_row_and_only_a_raise_is_blamed_on_an_event_trigger(
    error: psycopg.Error, words: str, *, blames_a_trigger: bool
) -> None:
    with pytest.raises(psycopg.Error) as found, creating_tables():
        raise error
    assert type(explained(found.value, "sink 'orders', creating its tables")) is ConfigurationError
    assert reason(found.value).startswith(words)
    assert ("probably with an event trigger" in reason(found.value)) is blames_a_trigger
    assert ("No row has caused this error" in reason(found.value)) is not blames_a_trigger


@pytest.mark.parametrize("error", [psycopg.errors.DiskFull("full"), psycopg.errors.InsufficientPrivilege("denied")])
def test_an_error_that_blames_no_row_stays_the_same_while_tables_are_created(error: psycopg.Error) -> None:
    with pytest.raises(type(error)) as found, creating_tables():
        raise error
    assert found.value is error
