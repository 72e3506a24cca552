"""Tokens for both clients: their supply, their renewal, and the errors without them."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import logging
import pickle
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.token_endpoint import TokenEndpoint
from twopc.errors import ConfigurationError, RetriableError, TwoPhaseCommitError
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.broker_connection import BrokerConnection
from twopc.sinks.kafka.errors import translate
from twopc.sinks.kafka.oauth import Tokens, failures
from twopc.sinks.kafka.oauth_requests import ClientCredentials, _claims, unsecured
from twopc.sinks.kafka.producer import make_ready
from twopc.sinks.kafka.producer_pool import PoolKey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CANARY = "canary-91c4"
OAUTH = {"kafka.security.protocol": "sasl_ssl", "kafka.sasl.mechanism": "OAUTHBEARER"}


def sink(**options: Any) -> KafkaSink:
    given = {**OAUTH, **{f"kafka.{name}": value for name, value in options.items()}}
    return KafkaSink(name="s", bootstrap_servers="127.0.0.1:1", options=given, timeout_ms=2_000)


def oidc(url: str, **other: str) -> dict[str, str]:
    return {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.id": "job:1",
        "sasl.oauthbearer.client.secret": CANARY,
        **other,
    }


def a_token(_config: str | None) -> tuple[str, float]:
    return CANARY, time.time() + 60


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    yield from TokenEndpoint("job:1", CANARY, life_s=60).serve()


@pytest.fixture(autouse=True)
def _nothing_fails() -> Iterator[None]:
    """Each test begins and ends without a failure of another test's supply."""
    from twopc.sinks.kafka import oauth  # noqa: PLC0415 - only this fixture needs it

    oauth._failing.clear()
    yield
    oauth._failing.clear()


@pytest.mark.parametrize("name", ["pkg91c4.tokens.fetch", "pkg91c4.tokens:fetch"])
def test_the_failed_import_of_a_modules_own_import_is_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pkg91c4"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tokens.py").write_text("import no_such_module_91c4\n\ndef fetch(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError, match="cannot be imported: No module named 'no_such_module_91c4'") as raised:
        sink(oauth_cb=name)
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)


# -- options ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "needs exactly one source of tokens, but the options set none"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://x/"}, "kafka.sasl.oauthbearer.method=oidc"),
        ({"sasl.oauthbearer.method": "oidc"}, "Set kafka.sasl.oauthbearer.token.endpoint.url, kafka.sasl.oauthbearer"),
        ({"sasl.oauthbearer.method": "jwt"}, "is unknown"),
        ({"sasl.oauthbearer.method": "oidc", "oauth_cb": a_token}, "kafka.oauth_cb and kafka.sasl.oauthbearer.method"),
        (oidc("file:///etc/passwd"), "must be a URL that begins with https://"),
        (oidc(f"https://ann:{CANARY}@host/"), "must be a URL that begins with https://"),
        ({"sasl.oauthbearer.grant.type": "jwt"}, "does not support"),
        ({"oauth_cb": "no.such:function"}, "cannot be imported"),
        ({"oauth_cb": 7}, "must be a function that returns a token"),
        (
            {"oauth_cb": a_token, "sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": CANARY},
            "is set, but has no effect",
        ),
        ({"oauth_cb": a_token, "security.protocol": "ssl"}, "is set, but has no effect"),
        ({"enable.sasl.oauthbearer.unsecure.jwt": True}, "contains no principal"),
    ],
)
def test_options_that_supply_no_token_are_refused_with_the_setting_to_use(
    options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        sink(**options)
    assert expected in str(raised.value)
    assert CANARY not in str(raised.value)


def test_a_description_requests_no_token(endpoint: TokenEndpoint) -> None:
    called: list[object] = []
    sink(oauth_cb=called.append)
    sink(**oidc(endpoint.url))
    assert (called, endpoint.requests) == ([], 0)


def test_a_callback_may_be_given_by_its_name() -> None:
    described = sink(oauth_cb=f"{__name__}:a_token")
    assert described.options["kafka.oauth_cb"]()[0] == CANARY


def test_no_representation_shows_a_secret() -> None:
    described = sink(oauth_cb=a_token)
    described.options["kafka.oauth_cb"]()
    other = sink(**oidc("https://x/"))
    credentials = ClientCredentials(other.client_options)
    shown = map(repr, [described, described.options, other, other.committing_config(), credentials])
    assert CANARY not in "".join(shown)
    assert CANARY.encode() not in pickle.dumps(described)  # a task requests its own token


def test_copies_in_two_tasks_use_one_pool_of_producers() -> None:
    copies = [pickle.loads(pickle.dumps(sink(oauth_cb=a_token))) for _ in range(2)]  # noqa: S301 - the bytes are our own
    keys = [PoolKey(copy.place, 1, tuple(sorted(copy.producer_config().items()))) for copy in copies]
    assert keys[0] == keys[1]
    assert copies[0] == dataclasses.replace(copies[1])


# -- the callback ----------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that a test moves."""

    now = 1_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("twopc.sinks.kafka.oauth.time.time", lambda: found.now)
    return found


def test_a_token_is_used_for_half_of_its_life_and_then_renewed(clock: Clock) -> None:
    lives: list[float] = []

    def request(_config: str | None) -> tuple[str, float]:
        lives.append(clock.now)
        return f"token {len(lives)}", clock.now + 100

    tokens = Tokens(request, "f")
    assert [tokens()[0], tokens()[0]] == ["token 1", "token 1"]
    clock.now += 49
    assert tokens()[0] == "token 1"
    clock.now += 2
    assert tokens()[0] == "token 2"


def test_an_old_token_serves_until_it_expires_if_no_new_one_is_available(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    broken: list[bool] = []

    def request(_config: str | None) -> tuple[str, float]:
        if broken:
            raise OSError("the provider is away")
        return CANARY, clock.now + 100

    tokens = Tokens(request, "f")
    tokens()
    broken.append(True)
    clock.now += 60
    with caplog.at_level(logging.WARNING, "twopc.sinks.kafka"):
        assert tokens()[0] == CANARY
    assert "f raised OSError: the provider is away" in caplog.text
    assert "the provider is away" in failures()[0]
    clock.now += 60
    with pytest.raises(RetriableError, match="f raised OSError: the provider is away"):
        tokens()
    broken.clear()
    assert tokens()[0] == CANARY
    assert failures() == []
    assert CANARY not in caplog.text


def test_a_request_that_hangs_does_not_delay_a_client_with_a_valid_token(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: connections to the brokers waited for the identity provider although the old token was valid."""
    monkeypatch.setattr("twopc.sinks.kafka.oauth._PATIENCE_S", 0.1)
    answer, requests = threading.Event(), list[float]()

    def request(_config: str | None) -> tuple[str, float]:
        requests.append(clock.now)
        if len(requests) > 1:
            assert answer.wait(60)
        return f"token {len(requests)}", clock.now + 100

    tokens = Tokens(request, "f")
    tokens()
    clock.now += 60
    try:
        for _ in range(3):  # also when a failed request would be repeated
            assert tokens()[0] == "token 1"
            clock.now += 10
        assert len(requests) == 2
    finally:
        answer.set()
    renewing = tokens._renewing
    assert renewing is not None
    renewing.join(10)
    assert tokens()[0] == "token 2"


def test_a_request_that_never_ends_is_replaced(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its late response does not replace a newer token."""
    monkeypatch.setattr("twopc.sinks.kafka.oauth._PATIENCE_S", 10)
    answer, requests = threading.Event(), list[float]()

    def request(_config: str | None) -> tuple[str, float]:
        requests.append(clock.now)
        number, expires_s = len(requests), clock.now + 1000
        if number == 2:
            assert answer.wait(60)
        return f"token {number}", expires_s

    tokens = Tokens(request, "f")
    tokens()
    clock.now += 600
    with monkeypatch.context() as patched:
        patched.setattr("twopc.sinks.kafka.oauth._PATIENCE_S", 0.1)
        assert tokens()[0] == "token 1"
    hanging = tokens._renewing
    assert hanging is not None
    clock.now += 100
    assert tokens()[0] == "token 3"
    answer.set()
    hanging.join(10)
    assert tokens()[0] == "token 3"


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (CANARY, r"returned \(str\)"),
        (None, r"returned \(NoneType\)"),
        ((CANARY,), r"returned \(str\)"),
        ((CANARY, "60"), r"returned \(str, str\)"),
        ((CANARY, 1.0, {}), r"returned \(str, float, dict\)"),
        ((CANARY, time.time() * 1000), "divide it by 1000"),
        ((CANARY, time.time() - 5), r"expired \d+ s ago"),
    ],
)
def test_an_invalid_token_is_refused_without_being_shown(returned: Any, expected: str) -> None:
    tokens = Tokens(lambda _config: returned, "f")
    with pytest.raises(TwoPhaseCommitError, match=expected) as raised:
        tokens()
    assert CANARY not in str(raised.value)


def test_principal_and_extensions_reach_both_clients() -> None:
    tokens = Tokens(lambda config: ("t", time.time() + 60, "ann", {"pool": config}), "f", "p=1")
    assert (tokens()[0], *tokens("ignored")[2:]) == ("t", "ann", {"pool": "p=1"})


def test_a_callback_that_fails_is_reported_at_once_by_both_clients() -> None:
    def fails(_config: str | None) -> tuple[str, float]:
        raise LookupError("no credentials")

    described = sink(oauth_cb=fails)
    began = time.monotonic()
    with pytest.raises(RetriableError, match="fails raised LookupError: no credentials"):
        BrokerConnection(described.committing_config())
    with pytest.raises(RetriableError, match="fails raised LookupError: no credentials"):
        described.create_decision_log()
    with pytest.raises(RetriableError, match="fails raised LookupError: no credentials"):
        make_ready(described.producer_config(), "s.0.a.0", 0, ("ledger",), timeout_ms=60_000)
    assert time.monotonic() - began < 10  # confluent-kafka alone waits 10 s for a token, and reports no reason


def test_the_error_for_a_timeout_says_why_no_token_was_available_but_another_error_does_not() -> None:
    from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415 - only this test needs it

    def error(code: int) -> str:
        return str(translate(KafkaException(KafkaError(code)), "reading"))

    tokens = Tokens(lambda _config: 1 / 0, "f")
    with pytest.raises(RetriableError):
        tokens()
    assert "f raised ZeroDivisionError" in error(KafkaError._TIMED_OUT)
    assert "ZeroDivisionError" not in error(KafkaError.NOT_LEADER_FOR_PARTITION)


def test_the_failure_of_a_discarded_token_supply_is_not_reported_as_the_reason() -> None:
    tokens = Tokens(lambda _config: None, "f")
    with contextlib.suppress(ConfigurationError):
        tokens()
    assert len(failures()) == 1
    del tokens
    gc.collect()
    assert failures() == []


# -- client credentials, which librdkafka itself supports --------------------------------------------------------------


def test_client_credentials_are_sent_as_oauth_specifies(endpoint: TokenEndpoint) -> None:
    options = oidc(endpoint.url, **{"sasl.oauthbearer.scope": "a b", "sasl.oauthbearer.extensions": "x=1, y=2"})
    token, expires_s, _, extensions = ClientCredentials(options)(None)
    assert _claims(token)["sub"] == "job:1"
    assert expires_s == _claims(token)["exp"]
    assert extensions == {"x": "1", "y": "2"}
    assert endpoint.forms == [{"grant_type": ["client_credentials"], "scope": ["a b"]}]


@pytest.mark.parametrize(
    ("status", "body", "kind", "expected"),
    [
        (401, {"error": CANARY}, ConfigurationError, "HTTP 401"),
        (302, {}, ConfigurationError, "HTTP 302"),
        (503, {}, RetriableError, "HTTP 503"),
        (429, {}, RetriableError, "HTTP 429"),
        (200, {"token": CANARY}, ConfigurationError, "contains no access_token"),
        (200, {"access_token": CANARY}, ConfigurationError, "contains no access_token or no expires_in"),
        (200, [CANARY], ConfigurationError, "contains no access_token"),
        (200, None, RetriableError, "cannot be used"),
    ],
)
def test_a_refusal_of_the_endpoint_is_reported_without_secrets(
    endpoint: TokenEndpoint, status: int, body: Any, kind: type[Exception], expected: str
) -> None:
    endpoint.answer = (status, b"no JSON" if body is None else json.dumps(body).encode())
    with pytest.raises(kind, match=expected) as raised:
        ClientCredentials(oidc(endpoint.url))(None)
    assert CANARY not in f"{raised.value}{raised.value.__cause__}"
    assert endpoint.requests == 1  # the secret is not sent to a redirect's target


def test_the_error_of_a_task_that_receives_no_token_from_the_endpoint_gives_the_reason(endpoint: TokenEndpoint) -> None:
    endpoint.answer = (401, b"{}")
    described = sink(**oidc(endpoint.url))
    with pytest.raises(ConfigurationError, match="HTTP 401"):
        make_ready(described.producer_config(), "s.0.a.0", 0, ("ledger",), timeout_ms=2_000)


def test_an_opaque_token_is_valid_as_long_as_the_endpoint_says(endpoint: TokenEndpoint) -> None:
    endpoint.answer = (200, json.dumps({"access_token": "opaque", "expires_in": 60}).encode())
    found, expires_s, *_ = ClientCredentials(oidc(endpoint.url))(None)
    assert found == "opaque"
    assert 30 < expires_s - time.time() <= 60


def test_an_unreachable_endpoint_counts_as_a_temporary_failure() -> None:
    with pytest.raises(RetriableError, match=r"the token endpoint at 127\.0\.0\.1 cannot be used"):
        ClientCredentials(oidc("http://127.0.0.1:1/"))(None)


def test_an_unsecured_token_has_the_configured_claims() -> None:
    token, _, principal, extensions = unsecured(
        "principalClaimName=azp principal=ann  scopeClaimName=roles scope=r1,r2 lifeSeconds=60 extension_pool=7"
    )
    claims = _claims(token)
    assert (principal, claims["azp"], claims["roles"], extensions) == ("ann", "ann", ["r1", "r2"], {"pool": "7"})
    assert 59 < claims["exp"] - claims["iat"] < 61
