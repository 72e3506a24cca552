"""Read a command's connection options from the command line and from a file, which may contain passwords."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twopc.errors import ConfigurationError
from twopc.sinks.kafka.options import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from confluent_kafka.admin import AdminClient

    from twopc.sinks.kafka import KafkaSink


def connection_options(pairs: Sequence[str], file: Path | None) -> dict[str, Any]:
    """Parse librdkafka options. ``key=value`` words override the file's lines, and the prefix ``kafka.`` is optional.

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
            raise ConfigurationError(
                "an option is not in the form key=value (the option is not shown, because it may contain a password)"
            )
        options[PREFIX + name.strip().removeprefix(PREFIX)] = value.strip()
    return options


def describing(  # noqa: PLR0913, PLR0917 - the options that describe a sink
    bootstrap_servers: str,
    sink: str,
    ledger_topic: str | None,
    options: Sequence[str] | None,
    options_file: Path | None,
    timeout_s: int,
) -> Callable[[], KafkaSink]:
    """Return a function that builds the sink. The function may raise a ConfigurationError for the command to report."""
    from twopc.sinks.kafka import KafkaSink  # noqa: PLC0415 - a slow import that --help does not need

    return lambda: KafkaSink(
        name=sink,
        bootstrap_servers=bootstrap_servers,
        ledger_topic=ledger_topic,
        options=connection_options(options or (), options_file),
        timeout_ms=timeout_s * 1000,
    )


def quiet_admin(sink: KafkaSink) -> AdminClient:
    """Return a client for the sink's cluster.

    The client logs nothing: its errors contain enough information, and its log lines would be mixed with the command's
    output.
    """
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - see above

    return AdminClient({**sink.connection_config(), "log_level": 0})
