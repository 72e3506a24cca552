"""The rights that docs/redis.md lists are enough, and a missing one stops a batch before its decision."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import pytest
import redis
from redis.crc import key_slot

from tests.live.one_task import apply, batch
from tests.live.redis.support import Move, sink_of, unique
from twopc.attempt import Evidence
from twopc.errors import BadRecordError, ConfigurationError
from twopc.sinks.redis.mappings import (
    Delete,
    Expire,
    HashIncrBy,
    HashSet,
    IncrBy,
    IncrByFloat,
    ListPush,
    Set,
    SetAdd,
    SortedSetAdd,
    StreamAdd,
)
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.live.redis.services import RedisService
    from twopc.integration.services.redis import LocalRedis
    from twopc.sinks.redis import RedisSink
    from twopc.sinks.redis.mappings import Mapping

#: The rights that docs/redis.md lists for an administrator.
OWN: Final = "~twopc:{name}:*"
KEYS: Final = f"{OWN} ~data:*"
COMMANDS: Final = "+eval +evalsha +info +type +unlink +hset +hget +hmget +hgetall +hkeys +hdel +hlen"
CLUSTER: Final = "+cluster|slots +command +asking"
KEY: Final = "data:{k}"
MAPPINGS: Final[tuple[tuple[Mapping, str], ...]] = (
    (Set(KEY, "n"), ""),
    (Set(KEY, "n", expire_ms=60_000), ""),
    (HashSet(KEY, ("n",)), ""),
    (IncrBy(KEY, "n"), "+get +set"),
    (HashIncrBy(KEY, ("n",)), ""),
    (IncrByFloat(KEY, "n"), "+get +set"),
    (SetAdd(KEY, "n"), ""),
    (SortedSetAdd(KEY, "n", "n"), ""),
    (ListPush(KEY, "n"), ""),
    (StreamAdd(KEY, ("n",)), "+xinfo"),
    (Expire(KEY, "n"), ""),
    (Delete(KEY), ""),
)


class Users:
    """Users of one server, each with separate rights."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._made: list[str] = []
        self.client: Any = redis.Redis.from_url(url)

    def url_with(self, rights: str, name: str | None = None) -> str:
        """The server's address for a user with exactly these rights, by default a new one."""
        name = name or unique()
        self._made.append(name)
        self.client.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", *rights.split())
        return self._url.replace("redis://", f"redis://{name}:secret@")

    def close(self) -> None:
        self.client.execute_command("ACL", "DELUSER", *self._made)
        self.client.close()


def sink_with(users: Users, rights: str, mapping: Mapping) -> RedisSink:
    """A new sink, whose user has exactly these rights."""
    name = unique()
    return sink_of(users.url_with(rights.format(name=name)), mapping, name=name)


@pytest.fixture(scope="module")
def users(redis_server: RedisService) -> Iterator[Users]:
    with contextlib.closing(Users(redis_server.url)) as made:
        yield made


def test_the_documented_rights_are_sufficient(users: Users) -> None:
    for mapping, more in MAPPINGS:
        key = unique()
        sink = sink_with(users, f"{KEYS} {COMMANDS} {more} +{mapping.command.lower()}", mapping)
        assert "secret" not in repr(sink)
        # From the second batch on, there is a key to check. The sink rehearses numbers of 2^62 or more.
        for number in (2**62, 1_000):
            rows = batch(k=[key], n=[number])
            assert apply(sink, rows) == [Evidence.COMMITTED], mapping


def test_a_password_may_contain_a_tab_and_a_line_break(users: Users) -> None:
    """Redis stores any bytes, and a URL escapes them."""
    name, password = unique(), "pa\tss\n"
    url = users.url_with(f"{KEYS.format(name=name)} {COMMANDS} +hset", name=name)
    for given, options in (
        (url.replace(":secret@", f":{quote(password)}@"), {}),
        (url.replace(f"{name}:secret@", ""), {"username": name, "password": password}),
    ):
        users.client.execute_command("ACL", "SETUSER", name, "resetpass", f">{password}")
        sink = sink_of(given, HashSet(KEY, ("n",)), name=name, options=options)
        assert apply(sink, batch(k=[unique()], n=[1])) == [Evidence.COMMITTED]


@contextlib.contextmanager
def users_of(servers: list[LocalRedis]) -> Iterator[list[Users]]:
    """The users of each node."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Users(server.url))) for server in servers]


@pytest.fixture(scope="module")
def cluster_users(redis_cluster: list[LocalRedis]) -> Iterator[list[Users]]:
    with users_of(redis_cluster) as made:
        yield made


@pytest.fixture
def own_cluster_users(own_cluster: list[LocalRedis]) -> Iterator[list[Users]]:
    with users_of(own_cluster) as made:
        yield made


def cluster_sink(users: list[Users], rights: str, *, name: str = "orders", **arguments: Any) -> RedisSink:
    """A sink whose user has the same rights on every node."""
    keys = KEYS.format(name=name)
    urls = [one.url_with(f"{keys} {COMMANDS} +hset {rights}", name=name) for one in users]
    return sink_of(urls[0], HashSet(KEY, ("n",)), name=name, cluster=True, **arguments)


def test_the_documented_rights_are_sufficient_in_a_cluster(cluster_users: list[Users]) -> None:
    sink = cluster_sink(cluster_users, CLUSTER)
    assert apply(sink, batch(k=["1", "2", "3"], n=[1, 2, 3])) == [Evidence.COMMITTED]


def test_the_documented_rights_are_sufficient_while_a_slot_is_being_moved(
    own_cluster: list[LocalRedis], own_cluster_users: list[Users]
) -> None:
    """The slot's old node answers ASK. The new node answers only after ASKING. Otherwise, it sends the client back."""
    sink = cluster_sink(own_cluster_users, CLUSTER, timeout_ms=2_000)
    moved = Move(own_cluster, key_slot(b"data:1"))
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(batch(k=["1"], n=[1]))
    moved.end()
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]


def test_the_error_for_the_missing_asking_right_names_it(
    own_cluster: list[LocalRedis], own_cluster_users: list[Users]
) -> None:
    sink = cluster_sink(own_cluster_users, CLUSTER.replace(" +asking", ""), timeout_ms=2_000)
    driver = Driver(sink)
    driver.begin()
    Move(own_cluster, key_slot(b"data:1"))
    with pytest.raises(ConfigurationError, match=r"'asking'.*Grant the Redis user.*docs/redis\.md"):
        driver.prepare(batch(k=["1"], n=[1]))


def test_the_documented_rights_are_sufficient_for_a_database_number_a_client_name_and_health_checks(
    users: Users,
) -> None:
    name = unique()
    url = urlsplit(users.url_with(f"{KEYS.format(name=name)} {COMMANDS} +hset +select +client|setname +ping"))
    url = url._replace(path="/1", query="client_name=orders&health_check_interval=1")
    sink = sink_of(url.geturl(), HashSet(KEY, ("n",)), name=name)
    assert apply(sink, batch(k=["1"], n=[1])) == [Evidence.COMMITTED]


def test_the_error_for_the_missing_cluster_slots_right_does_not_deny_that_the_server_is_a_cluster(
    cluster_users: list[Users],
) -> None:
    """redis-py says that the server is not a cluster. Without `cluster=True`, the sink would say that it is one."""
    sink = cluster_sink(cluster_users, "", timeout_ms=5_000)
    with pytest.raises(ConfigurationError, match=r"may not run CLUSTER SLOTS.*docs/redis\.md"):
        apply(sink, batch(k=["1"], n=[1]))


def test_without_the_mappings_command_a_batch_stops_before_its_decision(users: Users) -> None:
    for mapping, more in MAPPINGS:
        command = mapping.command.lower()
        if f"+{command}" in COMMANDS:
            continue
        key = unique()
        sink = sink_with(users, f"{KEYS} {COMMANDS} {more}", mapping)
        with pytest.raises(
            ConfigurationError, match=rf"key 'data:{key}'.*'{command}' command.*No part.*Grant the Redis user"
        ):
            apply(sink, batch(k=[key], n=[1_000]))
        assert not users.client.exists(f"data:{key}")


@pytest.mark.parametrize(
    "keys",
    [
        OWN,  # no right to the data
        f"{OWN} %R~data:*",  # only the right to read the data
        f"{OWN} ~data:a* %R~data:b*",  # the right to write one key and to read the other
    ],
)
def test_without_the_right_to_write_a_key_a_batch_stops_before_its_decision(keys: str, users: Users) -> None:
    key = unique()
    for mapping, more in MAPPINGS:
        sink = sink_with(users, f"{keys} {COMMANDS} {more} +{mapping.command.lower()}", mapping)
        # RetriableError and BadRecordError would mislead users.
        with pytest.raises(ConfigurationError, match=r"(?i)permission.*Grant the Redis user"):
            apply(sink, batch(k=[f"a{key}", f"b{key}"], n=[1, 1_000]))
        assert not users.client.exists(f"data:a{key}", f"data:b{key}")


def test_a_sinks_user_reaches_no_key_of_another_sink(users: Users) -> None:
    """With `~twopc:*`, it could read another sink's undecided rows, and forge the evidence that they were applied."""
    mapping = HashSet(KEY, ("n",))
    first = sink_with(users, f"{KEYS} {COMMANDS} +hset", mapping)
    driver = Driver(first)
    driver.begin()
    driver.prepare(batch(k=[unique()], n=[1]))
    own = sorted(key.decode() for key in users.client.scan_iter(f"twopc:{first.name}:*"))
    assert own
    name = first.name[:-1]  # a name with which the other one begins
    other = users.url_with(f"{KEYS.format(name=name)} {COMMANDS} +hset")
    with contextlib.closing(redis.Redis.from_url(other)) as client:
        for key in own:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.hgetall(key)
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.hset(key, "base", "1")
    with pytest.raises(ConfigurationError, match=r"Grant the Redis user.*'twopc:<sink name>:\*'"):
        apply(sink_of(other, mapping, name=first.name), batch(k=[unique()], n=[1]))
    assert apply(sink_of(other, mapping, name=name), batch(k=[unique()], n=[1])) == [Evidence.COMMITTED]


def test_a_right_revoked_after_the_check_blocks_the_batch_with_an_error_that_says_what_to_do(users: Users) -> None:
    sink = sink_with(users, f"{KEYS} {COMMANDS} +rpush", ListPush(KEY, "n"))
    user = sink.url.split("//")[1].split(":")[0]
    key = unique()
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(batch(k=[key], n=[1]))
    driver.committer.confirm([handle], 0)
    users.client.execute_command("ACL", "SETUSER", user, "-rpush")
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.UNKNOWN}
    [blocker] = driver.committer.blockers()
    assert "Grant the Redis user the mapping's command" in blocker
    users.client.execute_command("ACL", "SETUSER", user, "+rpush")
    assert driver.committer.commit([handle], scan_start) == {handle: Evidence.COMMITTED}
    assert users.client.lrange(f"data:{key}", 0, -1) == [b"1"]


def test_a_missing_right_is_never_mistaken_for_a_bad_row(users: Users) -> None:
    """Bad rows go to the dead letters, but a missing right is not the fault of a row."""
    sink = sink_with(users, f"{OWN} {COMMANDS} +hset", HashSet("other:{k}", ("n",)))
    with pytest.raises(ConfigurationError) as caught:
        apply(sink, batch(k=["a"], n=[1]))
    assert not isinstance(caught.value, BadRecordError)
