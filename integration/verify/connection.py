"""How ``twopc verify`` reaches a sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sinks.kafka import KafkaSink
from sinks.kafka.options import PREFIX
from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A sink and its brokers, as given on the command line.

    Attributes:
        bootstrap_servers: host:port, several separated by commas.
        sink: name of the sink.
        ledger_topic: its ledger; None: the default name.
        config: librdkafka's options, each ``key=value``.
        config_file: a file of such options.
        timeout_s: how long to wait for the brokers, in seconds.
    """

    bootstrap_servers: str
    sink: str
    ledger_topic: str | None = None
    config: tuple[str, ...] = ()
    config_file: Path | None = None
    timeout_s: int = 30

    def kafka_sink(self) -> KafkaSink:
        """The sink; does not connect.

        Raises:
            ConfigurationError: an option is invalid.
        """
        return KafkaSink(
            name=self.sink,
            bootstrap_servers=self.bootstrap_servers,
            ledger_topic=self.ledger_topic,
            options=connection_options(self.config, self.config_file),
            timeout_ms=self.timeout_s * 1000,
        )


def connection_options(pairs: Sequence[str], file: Path | None) -> dict[str, Any]:
    """Parse librdkafka's options: ``key=value`` words win over a properties file; the prefix ``kafka.`` is optional.

    Raises:
        ConfigurationError: an option is not ``key=value``, or the file cannot be read.
    """
    lines = list(pairs)
    if file is not None:
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--config-file {file} cannot be read: {error}") from error
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")] + lines
    options = {}
    for line in lines:
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise ConfigurationError("an option is not key=value (not shown: it may be a password)")
        options[PREFIX + name.strip().removeprefix(PREFIX)] = value.strip()
    return options
