"""A Redis sink's options go through one check, whether they are in ``options`` or in the url."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from twopc.errors import ConfigurationError
from twopc.sinks.redis import ListPush, RedisSink


def sink(url: str, options: dict[str, Any] | None = None, *, cluster: bool = False) -> RedisSink:
    return RedisSink(name="a", url=url, mapping=ListPush("rows", "v"), cluster=cluster, options=options or {})


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("decode_responses", "true", "'decode_responses' is reserved: the sink reads and writes bytes"),
        ("encoding", "utf-16", "'encoding' is reserved: the sink reads and writes bytes"),
        (
            "retry_on_timeout",
            "false",
            "'retry_on_timeout' is reserved: a redis-py retry could apply a command twice",
        ),
        ("socket_timeout", "3", "'socket_timeout' is reserved: timeout_ms determines the timeouts"),
        ("host", "h", "'host' is reserved"),
        ("ssl", "true", "'ssl' is reserved: to use TLS, begin the url with rediss://"),
        ("ssl_ca_certs", "/ca.pem", "'ssl_ca_certs' requires TLS: begin the url with rediss://"),
        ("nonsense", "1", "'nonsense' is not a redis-py option for connections"),
        ("timeout", "3", "'timeout' is not a redis-py option"),
        ("self", "1", "'self' is not a redis-py option"),
        ("kwargs", "1", "'kwargs' is not a redis-py option"),
    ],
)
def test_an_option_is_refused_both_in_the_url_and_in_options(option: str, value: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^RedisSink\(url=…\): {words}"):
        sink(f"redis://h?{option}={value}")
    with pytest.raises(ConfigurationError, match=rf"^RedisSink\(url=…\): {words}"):
        sink(f"unix:///tmp/redis.sock?{option}={value}")
    with pytest.raises(ConfigurationError, match=rf"^RedisSink\(options=…\): {words}"):
        sink("redis://h", {option: value})


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://x", "the url must start with redis://"),
        ("redis://h?db=", "'db' has no value"),
        ("redis://h?db=1&db=2", "the option 'db' occurs twice"),
        ("redis://h?db=x", "redis-py rejected a value: Invalid value for 'db'"),
        ("redis://h?health_check_interval=often", "Invalid value for 'health_check_interval'"),
        ("redis://h?credential_provider=x", "'credential_provider' cannot be written as text: pass it in options"),
        ("redis://h/prod", "the path is not a database number"),
        ("redis://h/0/1", "the path is not a database number"),
        ("redis://h/1?db=2", "the option 'db' occurs twice"),
        ("redis://h:x", "the port is not a number"),
        ("redis://h/0#replica", "nothing can follow a '#'"),
    ],
)
def test_the_error_identifies_the_fault_in_a_url(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        sink(url)


@pytest.mark.parametrize("password", ["pa/ss", "pa#ss", "pa?ss"])
def test_the_error_for_an_unescaped_password_explains_the_fault_and_does_not_show_the_password(password: str) -> None:
    with pytest.raises(ConfigurationError, match="write '/' as %2F") as caught:
        sink(f"redis://user:{password}@h:6379")
    assert "pa" not in str(caught.value).replace("part", "").replace("password", "")


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("redis://h/1", {"db": 1}, "'db' is also in the url"),
        ("redis://u:p@h", {"username": "x"}, "'username' is also in the url"),
        ("redis://h?client_name=a", {"client_name": "b"}, "'client_name' is also in the url"),
        ("redis://h", {"max_connections": -1}, "redis-py rejected a value.*max_connections"),
        ("rediss://h", {"ssl_cert_reqs": "perhaps"}, "redis-py rejected a value.*perhaps"),
    ],
)
def test_the_error_identifies_the_fault_in_the_options(url: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        sink(url, options)


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("redis://h/1", {}, "a cluster has only database 0"),
        ("redis://h?db=1", {}, "a cluster has only database 0"),
        ("redis://h", {"db": 0}, "a cluster has only database 0"),
        ("unix:///tmp/redis.sock", {}, "a cluster has no socket file"),
        # redis-py's cluster silently drops these options.
        ("redis://h?health_check_interval=3", {}, "'health_check_interval' is not a redis-py option for clusters"),
        (
            "redis://h",
            {"health_check_interval": 3},
            "'health_check_interval' is not a redis-py option for clusters",
        ),
        ("redis://h?require_full_coverage=false", {}, "'require_full_coverage' cannot be written as text"),
    ],
)
def test_the_error_identifies_the_setting_that_a_cluster_does_not_accept(
    url: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        sink(url, options, cluster=True)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://", {}),
        ("redis://u:p%2F%23@[::1]:6379/3?client_name=a&protocol=3&health_check_interval=30&max_connections=5", {}),
        ("redis://h?username=u&password=p&db=1&socket_connect_timeout=1.5&socket_keepalive=yes", {}),
        ("rediss://h?ssl_ca_certs=/ca.pem&ssl_check_hostname=false&ssl_cert_reqs=none", {"ssl_keyfile": "/k"}),
        ("unix://u@/tmp/redis.sock?db=1", {"client_name": "a", "max_connections": 2}),
    ],
)
def test_every_url_that_redis_py_accepts_is_accepted(url: str, options: dict[str, Any]) -> None:
    made = sink(url, options)
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - the bytes are our own, as tasks receive them


def test_a_cluster_accepts_its_own_options() -> None:
    assert sink(
        "redis://h/0?client_name=a", {"require_full_coverage": False, "reinitialize_steps": 1}, cluster=True
    ).cluster


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retry": None}, "'retry' is reserved"),
        ({"pasword": "secret"}, "'pasword' is not a redis-py option"),
        ({"socket_timeout": 1}, "'socket_timeout' is reserved"),
    ],
)
def test_an_invalid_option_of_the_sentinels_is_reported_without_its_value(options: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"sentinels": (("h", 1),), "service": "shop", "sentinel_options": options}
    with pytest.raises(ConfigurationError, match=rf"sentinel_options=…\): {words}") as raised:
        RedisSink(name="s", url="redis://", mapping=ListPush("rows", "v"), **given)
    assert "secret" not in str(raised.value)


def test_the_sentinels_options_need_sentinels() -> None:
    with pytest.raises(ConfigurationError, match=r"sentinel_options.*only together with sentinels"):
        RedisSink(name="s", url="redis://h", mapping=ListPush("rows", "v"), sentinel_options={"ssl": True})
