"""A broker with an OAUTHBEARER listener: tasks, driver and the committing client all use tokens, from any source.

The tokens are unsigned, and Kafka's own validator accepts them. If a token identifies the user ``ann``, her ACLs show
that each client sent it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.file_query import Query as SparkQuery
from tests.live.file_query import kafka_sink, values
from tests.live.pipeline import Query, Tasks, prepare_task
from tests.live.rules.schedules import Play, at, crash, until, work_of
from tests.live.security_support import USER, allow, documented_rights
from tests.live.services import KafkaService
from tests.live.spark_support import spark
from tests.token_endpoint import TokenEndpoint, unsecured_token
from twopc.errors import CommitBlockedError, ConfigurationError
from twopc.integration.services.kafka import LocalKafka
from twopc.sinks.kafka.oauth import failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["spark"]

CANARY = "canary-5d20"
ROWS = [["a", "b"], ["c"], []]
ALL = {"a": 1, "b": 1, "c": 1}
#: The broker ends a session after this time, or when its token expires.
SESSION_S = 5
#: The lifetime of a token. librdkafka renews a token when a fifth of this time is left, which must be long enough on a
#: busy machine.
LIFE_S = 20
TOKEN = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "OAUTHBEARER"}


@pytest.fixture(scope="module")
def secured() -> Iterator[LocalKafka]:
    """A broker with an OAUTHBEARER listener and ACLs. On the plain listener, everybody may do everything."""
    login = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    prefix = "listener.name.tokens.oauthbearer."
    properties = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{prefix}sasl.jaas.config": f'{login} required unsecuredLoginStringClaim_sub="broker";',
        f"{prefix}connections.max.reauth.ms": str(SESSION_S * 1000),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with LocalKafka(listeners={"TOKENS": "SASL_PLAINTEXT"}, properties=properties) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def endpoint() -> Iterator[TokenEndpoint]:
    yield from TokenEndpoint(USER, CANARY, life_s=30).serve()


class Callback:
    """An ``oauth_cb`` that counts its calls, and fails on demand."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.calls = 0
        self.broken = False

    def __call__(self, _config: str | None) -> tuple[str, float]:
        with self._lock:
            self.calls += 1
        if self.broken:
            raise LookupError("no credentials")
        return unsecured_token(USER, LIFE_S)


def oauth_cb(_config: str | None) -> tuple[str, float]:
    """The options as a user writes them."""
    return unsecured_token(USER, 30)


def with_oidc(endpoint: TokenEndpoint, secret: str = CANARY) -> dict[str, Any]:
    return {
        **TOKEN,
        "kafka.sasl.oauthbearer.method": "oidc",
        "kafka.sasl.oauthbearer.token.endpoint.url": endpoint.url,
        "kafka.sasl.oauthbearer.client.id": USER,
        "kafka.sasl.oauthbearer.client.secret": secret,
    }


WAYS: dict[str, Callable[[TokenEndpoint], dict[str, Any]]] = {
    "oauth_cb": lambda _: {**TOKEN, "kafka.oauth_cb": oauth_cb},
    "oidc": with_oidc,
    "unsecured": lambda _: {
        **TOKEN,
        "kafka.enable.sasl.oauthbearer.unsecure.jwt": True,
        "kafka.sasl.oauthbearer.config": f"principal={USER} lifeSeconds=30",
    },
}


def use_tokens(query: Query, secured: LocalKafka, options: dict[str, Any], **other: Any) -> None:
    query.sink = dataclasses.replace(
        query.sink, bootstrap_servers=secured.address("TOKENS"), options=options, **{"timeout_ms": 15_000, **other}
    )
    allow(secured, documented_rights(query.sink, query.topic))


@pytest.mark.parametrize("way", [pytest.param("oauth_cb", marks=pytest.mark.whole), "oidc", "unsecured"])
def test_a_whole_run_with_tokens_prepares_decides_commits_recovers_and_sweeps(
    secured: LocalKafka, endpoint: TokenEndpoint, tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Caught mutation: ``for_librdkafka`` drops the options of OAUTHBEARER."""
    play = Play(KafkaService(secured.bootstrap_servers), tmp_path)
    try:
        use_tokens(play, secured, WAYS[way](endpoint))
        with caplog.at_level(logging.DEBUG, "sinks"), caplog.at_level(logging.DEBUG, "twopc"):
            play.driver().process(play.batch(0), Tasks(play, ROWS))
            assert play.visible() == ALL
            prepare_task(play, work_of(play, 1, driver_epoch=0), 0, ["never"])
            assert len(play.open_transactions()) == 1  # an orphan, to be swept
            crash(play.driver(), play, 1, [["d"], ["e"]], "driver.decided")  # a decision, to be completed
            assert len(play.open_transactions()) == 2
            replay = Tasks(play, [["d"], ["e"]])
            play.driver().process(play.batch(1), replay)
        assert (replay.prepared, replay.evaluated) == (0, 1)
        assert play.visible() == {**ALL, "d": 1, "e": 1}
        assert play.open_transactions() == ()
        seen = [caplog.text, repr(play.sink), json.dumps([repr(decision) for decision in play.decisions()])]
        assert CANARY not in "".join(seen)
    finally:
        play.close()


@pytest.mark.whole
@pytest.mark.parametrize("rest_s", [SESSION_S + 1, pytest.param(LIFE_S + 4, marks=pytest.mark.whole)])
def test_an_idle_driver_outlives_its_sessions_and_tokens(secured: LocalKafka, tmp_path: Path, rest_s: float) -> None:
    """The broker ends sessions after a few seconds: each client has to authenticate again, with a valid token."""
    callback = Callback()
    query = Query(secured.bootstrap_servers, tmp_path)
    use_tokens(query, secured, {**TOKEN, "kafka.oauth_cb": callback})

    def rest() -> None:
        called, rested = callback.calls, time.monotonic() + rest_s
        assert until(lambda: time.monotonic() > rested, 60)
        # Each client has requested a new token at its own time, without being told to.
        assert (rest_s < LIFE_S) or (called < callback.calls <= called + 4)

    driver = query.driver()
    with at("driver.prepared", rest):
        driver.process(query.batch(0), Tasks(query, [["a"]]))
    driver.process(query.batch(1), Tasks(query, [["b"]]))
    assert query.visible() == {"a": 1, "b": 1}


@pytest.mark.whole
def test_a_callback_that_fails_later_stops_the_query_with_its_reason_and_loses_nothing(
    secured: LocalKafka, tmp_path: Path
) -> None:
    """Caught mutation: ``KafkaCommitter`` does not report token failures."""
    callback = Callback()
    query = Query(secured.bootstrap_servers, tmp_path)
    use_tokens(query, secured, {**TOKEN, "kafka.oauth_cb": callback}, timeout_ms=8_000)
    driver = query.driver()
    driver.process(query.batch(0), Tasks(query, ROWS))

    def lose_credentials() -> None:  # waits until no token is valid and the broker has ended the sessions
        callback.broken = True
        expired = time.monotonic() + LIFE_S + SESSION_S
        assert until(lambda: bool(failures()) and time.monotonic() > expired, 60)

    reason = "Callback raised LookupError: no credentials"
    with pytest.raises(CommitBlockedError, match=reason), at("driver.decided", lose_credentials):
        driver.process(query.batch(1), Tasks(query, [["d"]]))
    callback.broken = False
    replay = Tasks(query, [["d"]])
    query.driver().process(query.batch(1), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert query.visible() == {**ALL, "d": 1}


def test_credentials_that_the_endpoint_refuses_are_reported_at_once(
    secured: LocalKafka, endpoint: TokenEndpoint, tmp_path: Path
) -> None:
    query = Query(secured.bootstrap_servers, tmp_path)
    use_tokens(query, secured, with_oidc(endpoint, "canary-wrong"))
    with pytest.raises(ConfigurationError, match=r"HTTP 401.*kafka\.sasl\.oauthbearer\.client\.secret") as raised:
        query.driver().process(query.batch(0), Tasks(query, ROWS))
    assert "canary" not in str(raised.value)


@pytest.mark.whole
def test_spark_tasks_obtain_tokens_from_the_users_function(
    secured: LocalKafka, spark: SparkSession, tmp_path: Path
) -> None:
    """The function is pickled by value for the workers, like a function in a notebook."""
    user = USER

    def notebook_cb(_config: str | None) -> tuple[str, float]:
        import base64  # noqa: PLC0415 - imported in the function, as in a notebook
        import json as j  # noqa: PLC0415
        import time as t  # noqa: PLC0415

        expires_s = int(t.time()) + 60
        claims = {"sub": user, "iat": int(t.time()), "exp": expires_s}
        parts = [
            base64.urlsafe_b64encode(j.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "none"}, claims)
        ]
        return f"{parts[0]}.{parts[1]}.", expires_s

    plain = kafka_sink(secured.bootstrap_servers)
    sink = dataclasses.replace(
        plain, bootstrap_servers=secured.address("TOKENS"), options={**TOKEN, "kafka.oauth_cb": notebook_cb}
    )
    allow(secured, documented_rights(sink, sink.name))
    query = SparkQuery(spark, tmp_path, (sink,))
    query.feed(*({"id": f"k{n}", "n": n} for n in range(20)))
    query.run()
    query.feed(*({"id": f"k{n}", "n": n} for n in range(20, 40)))
    query.run()
    assert values(plain) == {str(n): 1 for n in range(40)}
