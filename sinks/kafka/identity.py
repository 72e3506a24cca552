"""Read a producer's id and epoch from the librdkafka log or statistics.

No librdkafka function returns both values. librdkafka logs both values before ``init_transactions()`` returns
(``rd_kafka_idemp_pid_update`` in ``rdkafka_idempotence.c``). The statistics also contain both values. However, each
report lists every partition of every known topic, and a client cannot stop the reports. This module therefore uses
statistics only if the format of the log line has changed.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twopc.sinks.kafka.client_log import ClientLog

#: Python's log levels, by syslog level, because librdkafka uses syslog levels.
LEVELS: Final = (50, 50, 50, 40, 30, 20, 20, 10)
_INFO: Final = 6  #: librdkafka's ``log_level``, unless ``debug`` is also set
_DEBUG: Final = 7
_FACILITY: Final = "GETPID"
_ACQUIRED: Final = re.compile(r"Acquired PID\{Id:(\d+),Epoch:(\d+)\}")
_CONTEXT: Final = "eos"  #: the category of the librdkafka debug lines that contain the id and epoch
_STATISTICS_INTERVAL_MS: Final = "100"

UNKNOWN: Final = (-1, -1)


class Identity:
    """One client's logger.

    The logger reads the id and epoch from the log lines, and forwards the lines that the user wants to see.

    Args:
        config: the user's options for the client.
        passed_on: the logger that receives the forwarded lines.
        by_statistics: whether to read the id and epoch from the statistics.

    Attributes:
        known: the producer's id and epoch; :data:`UNKNOWN` until librdkafka reports them.
    """

    def __init__(self, config: Mapping[str, Any], passed_on: ClientLog, *, by_statistics: bool = False) -> None:
        self.known = UNKNOWN
        self.passed_on = passed_on
        self._by_statistics = by_statistics
        self._debug = str(config.get("debug", ""))
        self._level = _DEBUG if self._debug else int(config.get("log_level", _INFO))

    @property
    def log_level(self) -> int:
        """The ``log_level`` that the user has set for the client."""
        return self._level

    @property
    def awaits_statistics(self) -> bool:
        """Whether the id and epoch must still be read from the statistics."""
        return self._by_statistics and self.known == UNKNOWN

    @property
    def options(self) -> dict[str, str]:
        """The options that make the client report its id and epoch."""
        if self._by_statistics:
            return {"statistics.interval.ms": _STATISTICS_INTERVAL_MS}
        return {"debug": ",".join(filter(None, (self._debug, _CONTEXT)))}

    def log(self, level: int, template: str, facility: str, client: str, text: str) -> None:
        """Log a line. Clients call this method in the same way as :meth:`logging.Logger.log`."""
        if facility == _FACILITY and (found := _ACQUIRED.search(text)):
            self.known = int(found[1]), int(found[2])
        if level >= LEVELS[self._level]:
            self.passed_on.log(level, template, facility, client, text)

    def read_statistics(self, text: str) -> None:
        """Read the statistics. This method is a callback for librdkafka's ``stats_cb``."""
        if self.known == UNKNOWN:
            eos = json.loads(text).get("eos", {})
            self.known = int(eos.get("producer_id", -1)), int(eos.get("producer_epoch", -1))
