"""Each sink refuses a secret that no client can send, or that a client would quote. The error names only the setting."""

from __future__ import annotations

import logging
import time
import traceback
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.unit.iceberg_support import TABLE
from twopc.errors import ConfigurationError, TwoPhaseCommitError
from twopc.sinks.delta import DeltaSink
from twopc.sinks.iceberg import IcebergSink
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.postgres import PostgresSink
from twopc.sinks.postgres.errors import explained
from twopc.sinks.postgres.options import Address
from twopc.sinks.redis import RedisSink, Set

if TYPE_CHECKING:
    from collections.abc import Callable

CANARY = "canary-91c4"
REST = {"type": "rest", "uri": "http://127.0.0.1:1"}
SCRAM = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "SCRAM-SHA-256"}
OIDC = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "OAUTHBEARER",
    "kafka.sasl.oauthbearer.method": "oidc",
    "kafka.sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
    "kafka.sasl.oauthbearer.client.id": "job",
    "kafka.sasl.oauthbearer.client.secret": "x",
}


def kafka(**options: Any) -> KafkaSink:
    return KafkaSink(name="s", bootstrap_servers="127.0.0.1:1", options=options, timeout_ms=2_000)


def redis(url: str, **given: Any) -> RedisSink:
    return RedisSink(name="s", url=url, mapping=Set(key="{k}", value="v"), **given)


def postgres(dsn: str) -> PostgresSink:
    return PostgresSink(name="s", dsn=dsn, table="t")


def iceberg(**catalog: Any) -> IcebergSink:
    return IcebergSink(name="s", catalog={**REST, **catalog}, table=TABLE, timeout_ms=1_000)


def delta(uri: str = "s3://bucket/t", **options: str) -> DeltaSink:
    return DeltaSink(name="s", table_uri=uri, storage_options=options, timeout_ms=1_000)


#: pyiceberg's own configuration, which it has read when it was imported.
OUTSIDE = "twopc.sinks.iceberg.private._ENV_CONFIG.config"
LINE = f"{CANARY}\n"
NUL = f"{CANARY}\0"
SENTINELS: dict[str, Any] = {"sentinels": (("h", 1),), "service": "s"}
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "Kafka password": (
        lambda: kafka(**SCRAM, **{"kafka.sasl.password": NUL}),
        "'kafka.sasl.password' contains a NUL",
    ),
    "Kafka user": (lambda: kafka(**SCRAM, **{"kafka.sasl.username": NUL}), "'kafka.sasl.username' contains a NUL"),
    "Kafka key": (lambda: kafka(**{"kafka.ssl.key.password": NUL}), "'kafka.ssl.key.password' contains a NUL"),
    "Kafka client": (
        lambda: kafka(**OIDC | {"kafka.sasl.oauthbearer.client.secret": NUL}),
        "'kafka.sasl.oauthbearer.client.secret' contains a NUL",
    ),
    "Kafka endpoint": (
        lambda: kafka(**OIDC | {"kafka.sasl.oauthbearer.token.endpoint.url": f"https://host/{LINE}"}),
        "'kafka.sasl.oauthbearer.token.endpoint.url' must be a URL",
    ),
    "Kafka endpoint with a blank": (
        lambda: kafka(**OIDC | {"kafka.sasl.oauthbearer.token.endpoint.url": f"https://host/?a={CANARY} b"}),
        "'kafka.sasl.oauthbearer.token.endpoint.url' must be a URL",
    ),
    "Kafka token as a callback": (
        lambda: kafka(**OIDC | {"kafka.oauth_cb": f"eyJ.{CANARY}.x"}),
        "'kafka.oauth_cb' is not the name of a callable",
    ),
    "Redis url": (lambda: redis(f"redis://:{CANARY}@h/0\n"), r"RedisSink\(url=…\): the url contains a line"),
    "Redis url with a blank": (lambda: redis(f"redis://:{CANARY}@h/0 "), r"the url begins or ends with a blank"),
    "PostgreSQL password": (lambda: postgres(f"host=h password='{NUL}'"), r"dsn=…\): the dsn "),
    "PostgreSQL password without quotes": (
        lambda: postgres(f"host=h password={NUL}x"),
        r"dsn=…\): the dsn contains a NUL",
    ),
    "PostgreSQL database": (lambda: postgres(f"postgresql://u:{CANARY}@h:5432/orders\n"), "'dbname' contains a line"),
    "PostgreSQL host": (lambda: postgres(f"host='h\n' password={CANARY}"), "'host' contains a line"),
    "PostgreSQL user": (lambda: postgres(f"postgresql://u%0A:{CANARY}@h/db"), "'user' contains a line"),
    "PostgreSQL url": (lambda: postgres(f"postgresql://u:{CANARY}%00@h/db"), r"dsn=…\): the dsn is neither"),
    "Iceberg token": (lambda: iceberg(token=LINE), r"catalog=…\): the value of 'token' contains a line"),
    "Iceberg token with a blank": (lambda: iceberg(token=f" {CANARY}"), "'token' begins or ends with a blank"),
    "Iceberg token with an ellipsis": (lambda: iceberg(token=f"{CANARY}…"), "'token' contains a character outside"),
    "Iceberg credential": (lambda: iceberg(credential=f"id:{LINE}"), "'credential' contains a line"),
    "Iceberg header": (lambda: iceberg(**{"header.X-Key": LINE}), "'header.X-Key' contains a line"),
    "Iceberg header's name": (lambda: iceberg(**{f"header.X {CANARY}": ""}), "'header.' may be followed only by"),
    "Iceberg password": (
        lambda: iceberg(auth={"type": "basic", "basic": {"username": "u", "password": NUL}}),
        "'auth.basic.password' contains a NUL",
    ),
    "Iceberg uri": (lambda: iceberg(uri=f"https://h/{LINE}"), "'uri' contains a line"),
    "Iceberg uri with a slash": (
        lambda: iceberg(uri=f"https://u:{CANARY}/x@h"),
        r"port in 'uri' is not valid.*'/' as %2F",
    ),
    "Iceberg SQL with a colon": (
        lambda: iceberg(type="sql", uri=f"postgresql+psycopg2://u:p@s:{CANARY}@h/db"),
        r"port in 'uri' is not valid.*'@' as %40",
    ),
    "Iceberg SQL with an at sign": (
        lambda: iceberg(type="sql", uri=f"postgresql+psycopg2://u:p@{CANARY}@h/db"),
        r"port in 'uri' is not valid.*'@' as %40",
    ),
    "Iceberg SQL without an at sign": (lambda: iceberg(uri=f"postgresql://u:{CANARY}"), "port in 'uri' is not valid"),
    "Delta token": (
        lambda: delta(AWS_SESSION_TOKEN=LINE),
        r"storage_options=…\): the value of 'AWS_SESSION_TOKEN' cont",
    ),
    "Delta key with a blank": (
        lambda: delta(azure_storage_account_key=f"{CANARY} "),
        "'azure_storage_account_key' begins",
    ),
    "Delta URI": (lambda: delta(f"s3://AK:{CANARY}@bucket/t"), r"table_uri='s3://…@bucket/t'\): .*storage_options"),
    "Delta SAS": (lambda: delta(f"az://box/t?sig={CANARY}"), r"table_uri='az://box/t'\): .*storage_options"),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_a_secret_that_no_client_can_send_is_refused_and_not_shown(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        make()
    assert CANARY not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "make",
    [
        lambda: kafka(**SCRAM, **{"kafka.sasl.username": "ann", "kafka.sasl.password": " pa ss "}),
        lambda: kafka(**SCRAM, **{"kafka.sasl.username": "ann", "kafka.sasl.password": "pa\tss\n"}),
        lambda: redis("redis://h", options={"password": " pa ss ", "max_connections": 3}),
        lambda: redis("redis://h", options={"password": "pa\tss\n"}),
        lambda: redis("redis://:pa%09ss%0A@h"),
        lambda: redis("redis://h", **SENTINELS, sentinel_options={"password": "pa\tss\n"}),
        lambda: postgres("host=h password='pa\tss\n'"),
        lambda: postgres("postgresql://u:pa%09ss%0A@h/db"),
        lambda: redis("rediss://h", options={"ssl_ca_data": "subject=x\n-----BEGIN CERTIFICATE-----\nx\n"}),
        lambda: postgres("\n host=h\n password=' pa ss '\n"),
        lambda: postgres("host=h dbname=' db ' options='-c work_mem=4MB ' password='pa\nss' sslpassword='pa\nss'"),
        lambda: iceberg(auth={"type": "basic", "basic": {"username": "u", "password": " pa ss "}}),
        lambda: iceberg(type="sql", uri="postgresql+psycopg2://u:p/a?s:s@h:5432/db?sslmode=require"),
        lambda: iceberg(type="sql", uri="sqlite:////data/catalog.db"),
        lambda: iceberg(type="sql", uri="postgresql+psycopg2://u:p%40@[::1]:5432/db"),
        lambda: iceberg(type="sql", uri="postgresql+psycopg2://u@server:p@server.postgres.database.azure.com:5432/db"),
        lambda: iceberg(type="hive", uri="thrift://a:9083,thrift://b:9083"),
        lambda: iceberg(uri="https://u:p%40@catalog.example:8181/api"),
        lambda: delta(google_service_account_key='{\n"private_key": "x"\n}\n'),
        lambda: delta("abfss://box@account.dfs.core.windows.net/t"),
        lambda: delta("/data/a?b@c"),
        lambda: delta("s3://bucket/tenant:eu@prod/orders"),
    ],
)
def test_a_secret_that_clients_can_send_is_accepted(make: Callable[[], object]) -> None:
    make()


def test_a_token_that_ends_in_a_line_break_is_refused_and_not_shown() -> None:
    options = {**OIDC, "kafka.oauth_cb": lambda _: (LINE, time.time() + 60)}
    del options["kafka.sasl.oauthbearer.method"]
    with pytest.raises(
        ConfigurationError, match=r"the token for SASL/OAUTHBEARER that kafka\.oauth_cb .* a line"
    ) as refused:
        kafka(**options).options["kafka.oauth_cb"]()
    assert CANARY not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("catalog", [{"token": CANARY}, {"header.X-Key": CANARY}, {"credential": f"id:{CANARY}"}])
def test_no_error_of_a_catalogs_client_shows_a_secret(catalog: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may quote a secret for a reason that the sink does not know."""

    def refuse(*_: object, **__: object) -> None:
        error = RuntimeError(f"cannot send {CANARY!r}")
        raise ValueError(f"Invalid header value b'Bearer {CANARY}\\n'") from error

    monkeypatch.setattr("twopc.sinks.iceberg.store.open_catalog", refuse)
    committer = iceberg(**catalog).create_committer()
    with pytest.raises(TwoPhaseCommitError, match="Invalid header value b'Bearer …") as raised:
        committer.binding()
    assert CANARY not in "".join(traceback.format_exception(raised.value))
    committer.close()


def test_no_error_of_a_catalogs_client_shows_a_secret_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError(f"Invalid header value b'Bearer {CANARY}\\n'")

    monkeypatch.setattr(OUTSIDE, {"catalog": {"env": {"token": CANARY}}})
    monkeypatch.setattr("twopc.sinks.iceberg.store.open_catalog", refuse)
    committer = iceberg(name="env").create_committer()
    with pytest.raises(TwoPhaseCommitError, match="Invalid header value") as raised:
        committer.binding()
    assert CANARY not in "".join(traceback.format_exception(raised.value))
    committer.close()


@pytest.mark.parametrize(
    ("outside", "words"),
    [
        ({"token": LINE}, "'token' contains a line"),
        ({"header.x-key": LINE}, r"'header\.x-key' contains a line"),
        ({"auth": {"type": "basic", "basic": {"password": NUL}}}, r"'auth\.basic\.password' contains a NUL"),
        ({"uri": f"postgresql://u:{CANARY}"}, "port in 'uri' is not valid"),
        ({"type": "in-memory"}, "an in-memory catalog exists in only one process"),
    ],
    ids=str,
)
def test_properties_of_a_catalog_in_the_environment_are_checked(
    outside: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OUTSIDE, {"catalog": {"env": outside}})
    with pytest.raises(ConfigurationError, match=rf"catalog=…\).*PYICEBERG_CATALOG__.*{words}") as refused:
        IcebergSink(name="s", catalog={"name": "env"}, table=TABLE)
    assert CANARY not in "".join(traceback.format_exception(refused.value))


def test_an_environment_that_pyiceberg_cannot_read_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OUTSIDE, {"catalog": CANARY})
    with pytest.raises(
        ConfigurationError, match=r"PYICEBERG_CATALOG__.*needs to be an object: env\. Correct"
    ) as refused:
        IcebergSink(name="s", catalog={"name": "env"}, table=TABLE)
    assert CANARY not in "".join(traceback.format_exception(refused.value))


def test_no_error_of_deltalake_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(f"cannot use {CANARY}")

    monkeypatch.setattr("twopc.sinks.delta.store.DeltaTable", refuse)
    committer = delta(AWS_SECRET_ACCESS_KEY=CANARY).create_committer()
    with pytest.raises(TwoPhaseCommitError, match="cannot use …") as raised:
        committer.binding()
    assert CANARY not in "".join(traceback.format_exception(raised.value))
    committer.close()


def test_a_masked_error_has_the_meaning_of_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password is a part of the words that show that the catalog's tables are missing."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError('(psycopg2.errors.UndefinedTable) relation "iceberg_tables" does not exist')

    monkeypatch.setattr("twopc.sinks.iceberg.store.open_catalog", refuse)
    committer = iceberg(type="sql", uri="postgresql+psycopg2://iceberg:iceberg@db/iceberg").create_committer()
    with pytest.raises(ConfigurationError, match=r'relation "…_tables" .* does not contain an Iceberg catalog'):
        committer.binding()
    committer.close()


def test_a_masked_refusal_of_postgresql_has_the_meaning_of_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise psycopg.OperationalError('connection failed: FATAL:  password authentication failed for user "ann"')

    monkeypatch.setattr(psycopg, "connect", refuse)
    with pytest.raises(psycopg.OperationalError) as refused:
        Address("host=db password='authentication'").connect("s", timeout_ms=1_000)
    assert explained(refused.value, "sink 's'").args[0].count("… failed") == 1
    assert isinstance(explained(refused.value, "sink 's'"), ConfigurationError)


HTTP = "http://login.example/token"


def test_a_readable_login_in_the_environment_causes_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(OUTSIDE, {"catalog": {"env": {"token": CANARY}}})
    with caplog.at_level(logging.WARNING):
        iceberg(uri=HTTP, name="env")
    assert "others on the network can read" in caplog.text
    assert CANARY not in caplog.text


@pytest.mark.parametrize(
    ("make", "warns"),
    [
        (lambda: kafka(**OIDC | {"kafka.sasl.oauthbearer.token.endpoint.url": HTTP}), True),
        (lambda: kafka(**OIDC), False),
        (lambda: iceberg(uri=HTTP, token=CANARY), True),
        (lambda: iceberg(uri="https://h", credential=CANARY, **{"oauth2-server-uri": HTTP}), True),
        (lambda: iceberg(uri=HTTP), False),
        (lambda: iceberg(uri="https://h", token=CANARY), False),
        (lambda: iceberg(token=CANARY), False),  # on this host
    ],
)
def test_a_login_that_leaves_the_host_without_encryption_causes_a_warning(
    make: Callable[[], object], *, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    from twopc.sinks.kafka import oauth_requests  # noqa: PLC0415 - only this test needs it

    oauth_requests._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        make()
        make()
    assert ("others on the network can read" in caplog.text) is warns
    assert CANARY not in caplog.text
