from __future__ import annotations

import pickle

import pytest

from twopc.errors import ConfigurationError
from twopc.sinks.postgres.options import Address

_AWKWARD = "pa/ss:w@rd?&=%#"
_ESCAPED = "pa%2Fss%3Aw%40rd%3F%26%3D%25%23"


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        (f"postgresql://spark:{_ESCAPED}@db.example:5433/shop?sslmode=require", "spark@db.example:5433/shop"),
        (f"host=a,b port=5432,5433 user=spark dbname=shop password='{_AWKWARD}'", "spark@a,b:5432,5433/shop"),
        ("postgresql:///shop", "localhost/shop"),
        ("service=shop", "shop"),
        ("host=/run/postgresql", "/run/postgresql"),
    ],
)
def test_an_address_is_shown_without_its_password(dsn: str, shown: str) -> None:
    address = Address(dsn)
    assert str(address) == shown
    assert _AWKWARD not in repr(address)
    assert _ESCAPED not in repr(address)
    assert pickle.loads(pickle.dumps(address)) == address  # noqa: S301 - the bytes are our own


@pytest.mark.parametrize("secret", ["pa/ss", "pa@ss", "pa%ss", "pa%zz", "pa ss", "p:a@s:s", "p\0ss", "@", "a#b/c"])
def test_an_unescaped_password_is_refused_and_no_part_of_it_is_shown(secret: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^PostgresSink\(dsn=…\): .*'@' as %40") as refused:
        Address(f"postgresql://spark:canary{secret}canary@db.example:5432/shop")
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "dsn", ["canary", "host=db canary", "password='canary", "postgresql://u:canary@[::1", "host=db canary=x"]
)
def test_a_connection_string_that_cannot_be_parsed_is_not_quoted(dsn: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^PostgresSink\(dsn=…\): the dsn is neither") as refused:
        Address(dsn)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [
        ("host=db port=canary", "the port is not a number up to 65535"),
        ("host=db port=65536", "the port is not a number up to 65535"),
        ("host=db client_encoding=latin1", "the sink itself sets 'client_encoding': the sink writes UTF-8. Remove it"),
        ("postgresql://db/x?connect_timeout=5", "the sink itself sets 'connect_timeout': timeout_ms"),
        ("host=db replication=database", "the sink itself sets 'replication'"),
    ],
)
def test_a_parameter_that_the_sink_sets_is_rejected_with_an_error_that_identifies_it(dsn: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Address(dsn)
    assert reason in str(refused.value)
    assert "canary" not in str(refused.value)


def test_a_secret_is_hidden_in_any_message_escaped_or_not() -> None:
    address = Address(f"postgresql://spark:{_ESCAPED}@db/shop?sslpassword=other-canary")
    message = f"cannot use {_AWKWARD} or {_ESCAPED} or other-canary"
    assert address.hide(message) == "cannot use … or … or …"
    assert Address("host=db password=a").hide("a bad day") == "a bad day"
