"""Refuse a call from a forked child of the process in which Spark calls the user's function.

The child inherits the parent's connections to Spark, so Spark cannot tell the child's requests from the function's own. But the
child only has a copy of the parent's memory, so it does not know which calls other children have made.
"""

from __future__ import annotations

import os

from twopc.errors import ConfigurationError


def child_process_error() -> ConfigurationError:
    """Build the error for a call from a child process."""
    return ConfigurationError(
        f"this call came from a child process (process {os.getpid()}) that your function started by a fork, for example "
        "with multiprocessing. A child process does not know about calls from the function itself or from other children, "
        "so rows could be lost. This call wrote nothing. Call the exactly_once() object, or an interceptor's proceed, in the "
        "process in which Spark called your function. Child processes may do other work. To limit the time of a batch, "
        "use exactly_once(checkpoints=CheckpointConfig(timeout_ms=…)). To write several DataFrames, pass all of them in "
        'one call: each({"orders": orders, "audit": audit}, batch_id). Then restart the query'
    )
