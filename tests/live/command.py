"""The command ``twopc`` as a process of its own."""

from __future__ import annotations

import sys

_RUN = "from twopc.integration.cli import app; app(prog_name='twopc')"
COMMAND = [sys.executable, "-c", _RUN]
#: A build server's shell may ignore Ctrl-C, and children inherit that. The child itself restores the signal: with a
#: ``preexec_fn``, Python code would run in a fork of this process, whose libraries have threads, and the fork may crash.
INTERRUPTIBLE = [
    sys.executable,
    "-c",
    f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {_RUN}",
]
