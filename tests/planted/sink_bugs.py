"""Broken variants of several sinks behind one decision, and of those that stage and apply."""

from __future__ import annotations

from typing import Final

from tests.planted.bug import Bug, one_edit

SINK_BUGS: Final[tuple[Bug, ...]] = (
    one_edit(
        "a bad row is not part of what a replay must repeat",
        9,
        "integration/spark/task.py",
        "                checksum += _BAD_ROW_FACTOR * _sum(hashes.filter(rows.column(CAUSE).is_valid()))\n",
        "",
        model=False,
        whole="tests/live/test_spark_sinks.py -k bad_no_more",
    ),
    one_edit(
        "a bad row is kept from one sink only",
        0,
        "integration/spark/views.py",
        "            return self._named(rows if pc.all(is_good).as_py() else rows.filter(is_good))\n",
        "            return self._named(rows)\n",
        model=False,
        protocol="tests/unit/test_spark_views.py",
    ),
    one_edit(
        "every sink is given the first one's columns",
        0,
        "integration/spark/task.py",
        "                writer.write_rows(self.views[name].of(rows))\n",
        "                writer.write_rows(next(iter(self.views.values())).of(rows))\n",
        model=False,
        whole="tests/live/test_spark_sinks.py -k columns_of_its_own",
    ),
    one_edit(
        "sinks commit by name",
        0,
        "twopc/participants.py",
        "key=lambda name: (committers[name][1].decision_log() is None, name)",
        "key=lambda name: name",
        model=False,
        whole="tests/live/test_spark_sinks.py -k before_redis",
    ),
    one_edit(
        "an older copy of the registers is the log",
        10,
        "twopc/start.py",
        "        require_newest(self.participants, owners, view, batch, self.settings.overrides)\n",
        "",
        model=False,
        protocol="tests/contract/test_contract.py -k older_copy",
    ),
    one_edit(
        "Redis keeps a decision for the next query, too",
        10,
        "sinks/redis/scripts.py",
        "if held('query_id', 'lineage') ~= ARGV[3] then redis.call('HDEL', KEYS[1], 'decided') end\n",
        "",
        model=False,
        protocol="tests/contract/test_contract.py -k ended_another",
    ),
    one_edit(
        "Redis takes an overtaken slice",
        0,
        "sinks/redis/scripts.py",
        "local wanted = tonumber(ARGV[3])\nif base < fence then return {'STALE'} end\n",
        "local wanted = tonumber(ARGV[3])\n",
        model=False,
        protocol="tests/live/redis/test_apply_once.py",
    ),
    one_edit(
        "Redis forgets which row it has come to",
        0,
        "sinks/redis/scripts.py",
        "      if at > row + 1 then redis.call('HSET', KEYS[1], uuid, wanted .. ':' .. (at - 1)) end\n",
        "",
        model=False,
        protocol="tests/live/redis/test_apply_once.py tests/live/redis/test_bad_input.py",
    ),
    one_edit(
        "Redis takes the control record of version 0.1 for none",
        0,
        "sinks/redis/scripts.py",
        "  return redis.call('HGET', KEYS[1], name) or redis.call('HGET', KEYS[1], former)\n",
        "  return redis.call('HGET', KEYS[1], name)\n",
        model=False,
        protocol="tests/live/redis/test_former_control.py",
    ),
)
