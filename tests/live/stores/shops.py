"""A sink of each store, and unexpected changes of a store."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg
import redis

from tests.live.postgres.support import new_database
from tests.unit import delta_support, iceberg_support
from twopc import PostgresSink, RedisSink
from twopc.sinks.redis.mappings import IncrBy
from twopc.testing.contract import Case, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

    from tests.live.postgres.services import PostgresService
    from tests.live.redis.services import RedisService


@dataclass
class Shop:
    """A sink with its own, empty output.

    Attributes:
        case: the sink.
        content: returns everything in the store that concerns the sink, and shows each write and each lock.
        lose_record: deletes the control record.
        lose_rows: deletes the staged rows that are not published, for at most this number of tasks.
        backup: returns a function that sets the store back to this moment.
        roll_back: sets only the table back, with the table format's own rollback; None if the format has none.
        miscount: alters the number of rows of batch 1 in the table's history to 9; None if the store has no history.
    """

    case: Case
    content: Callable[[], object]
    lose_record: Callable[[], object]
    lose_rows: Callable[[int], object]
    backup: Callable[[], Callable[[], object]]
    roll_back: Callable[[], object] | None = None
    miscount: Callable[[], object] | None = None


def postgres(request: pytest.FixtureRequest, directory: Path, **how: Any) -> Shop:
    del directory
    server: PostgresService = request.getfixturevalue("postgres_server")
    stack = contextlib.ExitStack()
    request.addfinalizer(stack.close)
    dsn = stack.enter_context(new_database(server.dsn))

    def ask(*statements: str) -> list[Any]:
        with contextlib.closing(psycopg.connect(dsn, autocommit=True)) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    ask("CREATE TABLE target (value bigint, note text)")
    sink = PostgresSink(name="orders", dsn=dsn, table="target", timeout_ms=2_000, **how)
    stages = "SELECT tablename FROM pg_tables WHERE schemaname = 'twopc' AND tablename LIKE 'stage%'"

    def content() -> object:
        # Locking a row changes its xmax, too.
        tables = ("twopc.control", "twopc.slice", "twopc.marker", "target")
        rows = [ask(f"SELECT t.*, xmin::text, xmax::text FROM {name} t ORDER BY ctid") for name in tables]  # noqa: S608 - the SQL is our own
        return rows, sorted(ask(stages))

    def lose_rows(tasks: int) -> None:
        ask(*(f'DROP TABLE twopc."{name}"' for (name,) in ask(stages)[:tasks]))

    def backup() -> Callable[[], object]:
        [(record,)] = ask("SELECT encode(record, 'hex') FROM twopc.control")
        return lambda: ask(f"UPDATE twopc.control SET record = decode('{record}', 'hex')")  # noqa: S608 - the SQL is our own

    case = Case(sink, numbers, lambda: [value for (value,) in ask("SELECT value FROM target ORDER BY value")])
    return Shop(case, content, lambda: ask("DELETE FROM twopc.control"), lose_rows, backup)


def redis_counters(request: pytest.FixtureRequest, directory: Path) -> Shop:
    server: RedisService = request.getfixturevalue("redis_server")
    name = f"s{directory.parent.name}{directory.name}".replace(".", "-")[-40:]
    sink = RedisSink(name=name, url=server.url, mapping=IncrBy(f"{name}:{{value}}"), timeout_ms=1_000)
    client = redis.Redis.from_url(server.url)
    request.addfinalizer(client.close)
    record = f"twopc:{name}:{{{name}}}:control"

    def keys(pattern: str) -> list[bytes]:
        return sorted(client.scan_iter(pattern, count=1000))

    def visible() -> list[int]:
        found = {int(key.rpartition(b":")[2]): int(client.get(key) or 0) for key in keys(f"{name}:*")}
        return sorted(number for number, count in found.items() for _ in range(count))

    def backup() -> Callable[[], object]:
        kept = client.dump(record)
        assert kept is not None
        return lambda: client.restore(record, 0, kept, replace=True)

    return Shop(
        Case(sink, numbers, visible),
        lambda: [(key, client.dump(key)) for key in (*keys(f"twopc:{name}:*"), *keys(f"{name}:*"))],
        lambda: client.delete(record),
        lambda tasks: client.delete(*keys(f"twopc:{name}:*:slice:*")[:tasks]),
        backup,
    )


def iceberg(request: pytest.FixtureRequest, directory: Path) -> Shop:
    del request
    shop = iceberg_support.Shop(directory)
    shop.append(-1)  # so that the sink's own snapshots are not the table's first ones

    def lose_record() -> None:
        shop.change(lambda table: table.manage_snapshots().remove_tag(iceberg_support.TAG).commit())

    def miscount(metadata: Any) -> None:
        [summary] = [one["summary"] for one in metadata["snapshots"] if one["summary"].get("twopc.batch") == "1"]
        summary["added-records"] = "9"

    made = _lake(shop, shop.warehouse.directory, lose_record, lambda: [one for one in shop.values() if one >= 0])
    return replace(made, miscount=lambda: shop.edit(miscount))


def delta(request: pytest.FixtureRequest, directory: Path) -> Shop:
    del request
    shop = delta_support.Shop(directory)

    def lose_record() -> None:
        for path in shop.records():
            path.unlink()

    def miscount() -> None:
        log = (shop.path / "_delta_log").glob("*.json")
        [path] = [one for one in log if re.search(r'"twopc\.batch":1\b', one.read_text())]
        path.write_text(path.read_text().replace('"twopc.rows":10', '"twopc.rows":9'))

    return replace(_lake(shop, shop.path, lose_record, shop.values), miscount=miscount)


def _lake(shop: Any, root: Path, lose_record: Callable[[], object], visible: Callable[[], list[int]]) -> Shop:
    def lose_rows(tasks: int) -> None:
        named = shop.named_files()
        for path in [path for path in shop.files() if path.name not in named][:tasks]:
            path.unlink()

    def backup() -> Callable[[], object]:
        kept = shop.backup()
        return lambda: shop.restore(kept)

    def content() -> object:
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in _files(root)}

    return Shop(
        Case(shop.sink, numbers, visible, silence=shop.silent), content, lose_record, lose_rows, backup, shop.roll_back
    )


def _files(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if path.is_file())


SHOPS = [postgres, redis_counters, iceberg, delta]
