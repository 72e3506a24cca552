"""A container user without a name or a home directory, as on OpenShift: every part works, or says what to set."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: An id that no user has. A process under this id imports everything while it still runs as root and may read every
#: file.
_UID = 1_000_650_000
_PROGRAM = """
import os, sys
from twopc.integration.operate.journal import _user
from twopc.integration.services import ServiceError, cache_dir
from twopc.sinks.hbase import HBaseSink, Put
from twopc.errors import ConfigurationError

os.chdir("/")
os.setuid({uid})
sink = HBaseSink(name="a", zookeeper="h:1", table="t", mapping=Put("{{id}}", {{"d:v": "v"}}), user={user!r})
print("journal:", _user())
for what, step in (("hbase", lambda: sink.create_client().cluster and "made"), ("cache", cache_dir)):
    try:
        print(f"{{what}}: {{step()}}")
    except (ConfigurationError, ServiceError) as error:
        print(f"{{what}}: {{error}}")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user without a name")
@pytest.mark.parametrize(
    ("settings", "user", "words"),
    [
        (
            {},
            "",
            [
                "hbase: HBaseSink(user=''): no user name exists on this machine for this process's user id 1000650000",
                "cache: the directory for downloads cannot be created: ",
            ],
        ),
        ({"HOME": "/"}, "spark", ["hbase: made", "cache: the directory for downloads cannot be created: [Errno 13]"]),
        ({"HADOOP_USER_NAME": "spark", "HOME": "/tmp"}, "", ["hbase: made", "cache: /tmp/.cache/twopc"]),  # noqa: S108
        ({"USER": "spark"}, "", ["hbase: made", "Set TWOPC_CACHE_DIR to a directory"]),
    ],
)
def test_an_error_tells_a_user_without_a_name_what_to_set(
    settings: dict[str, str], user: str, words: list[str]
) -> None:
    unnamed = {"HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_CACHE_HOME", "TWOPC_CACHE_DIR", "HADOOP_USER_NAME"}
    environment = {name: value for name, value in os.environ.items() if name not in unnamed} | settings
    program = _PROGRAM.format(uid=_UID, user=user)
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    for one in words:
        assert one in ran.stdout
    assert f"journal: {settings.get('USER', _UID)}" in ran.stdout
