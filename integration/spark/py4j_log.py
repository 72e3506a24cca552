"""Keep secrets out of Py4J's debug lines.

Py4J logs the data that it sends to Spark, including pickled sinks with their passwords.
"""

from __future__ import annotations

import logging
from typing import Final

_LOGGERS: Final = ("py4j.clientserver", "py4j.java_gateway")
_PICKLED: Final = "SimplePythonFunction"


def _has_no_function(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG or _PICKLED not in str(record.msg)


def hide_functions() -> None:
    """Suppress this process's debug lines that contain a pickled function. A second call changes nothing."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_has_no_function)
