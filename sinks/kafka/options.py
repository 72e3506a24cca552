"""librdkafka's options as a user gives them, with the prefix ``kafka.`` as in Spark, for the two clients that share them.

librdkafka writes rows and decisions; kafka-python commits transactions of other processes (``sinks.kafka.transactions``).
Connection options must hold for both, so an option that kafka-python cannot honour is refused by name, not dropped.

Source of the names: librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "kafka."
#: The brokers' default maximum (transaction.max.timeout.ms). With librdkafka's default of 60 s more transactions are lost
#: (rule 9).
DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 900_000

_ACKS: Final = "transactions need acks=all"
_IN_FLIGHT: Final = "idempotence limits it"
_RETRIES: Final = "idempotence makes retries safe, and only the transaction timeout limits them"
_REPORTS: Final = "a task's vote depends on the delivery reports"
_STATISTICS: Final = "the producer's id and epoch are read from the statistics"
_SERVERS: Final = "set the argument bootstrap_servers instead"
_TIMEOUT: Final = "it must equal the transaction timeout; set kafka.transaction.timeout.ms instead"
#: Options that a user must not set, and why.
_OWNED: Final = {
    "transactional.id": "each producer needs its own, made of sink, driver epoch, worker and sequence",
    "enable.idempotence": "transactions need it",
    "enable.gapless.guarantee": "a lost record must fail its transaction only, not the producer",
    "acks": _ACKS,
    "request.required.acks": _ACKS,
    "max.in.flight": _IN_FLIGHT,
    "max.in.flight.requests.per.connection": _IN_FLIGHT,
    "retries": _RETRIES,
    "message.send.max.retries": _RETRIES,
    "delivery.report.only.error": _REPORTS,
    "dr_cb": _REPORTS,
    "dr_msg_cb": _REPORTS,
    "on_delivery": _REPORTS,
    "statistics.interval.ms": _STATISTICS,
    "stats_cb": _STATISTICS,
    "error_cb": "the sink raises the client's errors itself",
    "bootstrap.servers": _SERVERS,
    "metadata.broker.list": _SERVERS,
    "isolation.level": "the ledger must be read with read_committed",
    "delivery.timeout.ms": _TIMEOUT,
    "message.timeout.ms": _TIMEOUT,
}
#: Connection options that kafka-python takes under another name.
_RENAMED: Final = {
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
}
#: Connection options that kafka-python takes as an ssl.SSLContext.
_TLS: Final = frozenset(
    {
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.crl.location",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
_MECHANISMS: Final = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"})


def parse(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check a user's options; returns them as :func:`bare` does.

    Raises:
        ConfigurationError: an option without the prefix, one that the sink itself sets, one that librdkafka does not know
            or refuses, or a connection option that the committing client cannot honour.
    """
    for name, value in options.items():
        if not name.startswith(PREFIX):
            raise ConfigurationError(
                f"option {name!r} has no prefix. Set '{PREFIX}{name}' if it is an option of librdkafka; remove it otherwise"
            )
        owned = _OWNED.get(name.removeprefix(PREFIX))
        if owned:
            raise ConfigurationError(f"option {name!r}={value!r} cannot be set: {owned}. Remove the option")
        if name == "kafka.partitioner.class" or name.endswith((".serializer", ".deserializer")):
            raise ConfigurationError(
                f"option {name!r}={value!r} belongs to the Java client; the sink sends bytes. Remove the option"
            )
    parsed = bare(options)
    _require_committable(parsed)
    _require_known(parsed)
    return parsed


def bare(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without the prefix, as librdkafka takes them: strings and callables."""
    return {name.removeprefix(PREFIX): value if callable(value) else _text(value) for name, value in options.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _require_committable(parsed: Mapping[str, Any]) -> None:
    for name, value in parsed.items():
        connection = name.startswith(("ssl.", "sasl.", "https.ca")) or name in {"oauth_cb", "connect_cb", "resolve_cb"}
        if connection and name not in _RENAMED and name not in _TLS:
            raise ConfigurationError(
                f"option 'kafka.{name}' is set, but the client that commits prepared transactions cannot honour it. Set only "
                f"these: {', '.join(sorted(PREFIX + n for n in (*_RENAMED, *_TLS) if n.startswith(('ssl.', 'sasl.'))))}"
            )
        if name in {"sasl.mechanism", "sasl.mechanisms"} and str(value).upper() not in _MECHANISMS:
            raise ConfigurationError(
                f"option 'kafka.{name}'={value!r}: the client that commits prepared transactions cannot honour it. Set one of "
                f"{', '.join(sorted(_MECHANISMS))}"
            )


def _require_known(parsed: Mapping[str, Any]) -> None:
    try:
        # Without bootstrap.servers it connects to nothing.
        confluent_kafka.Producer({**producer_config("", parsed), "transactional.id": "check", "log_level": 0})
    except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, confluent_kafka.KafkaException) else str(error)
        names = sorted(PREFIX + name for name in parsed)
        raise ConfigurationError(
            f"librdkafka refuses one of the options {names}: {reason}. Correct or remove it"
        ) from error


def transaction_timeout_ms(parsed: Mapping[str, Any]) -> int:
    """How long the broker lets a transaction stay open."""
    return int(parsed.get("transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS))


def producer_config(bootstrap_servers: str, parsed: Mapping[str, Any]) -> dict[str, Any]:
    """The options that all producers share."""
    return {
        # The Java client's partitioner, so that keys stay in the partitions where Spark's own sink put them.
        "partitioner": "murmur2_random",
        "linger.ms": "5",
        # Limits a task's memory; librdkafka's default is 1 GiB.
        "queue.buffering.max.kbytes": "32768",
        "queue.buffering.max.messages": "200000",
        # How long an unknown topic may take to appear before its records fail; librdkafka's default is 30 s.
        "topic.metadata.propagation.max.ms": "10000",
        **parsed,
        "bootstrap.servers": bootstrap_servers,
        "transaction.timeout.ms": str(transaction_timeout_ms(parsed)),
        # A record that was not delivered while its transaction lived cannot be delivered later.
        "message.timeout.ms": str(transaction_timeout_ms(parsed)),
        "enable.idempotence": "true",
        "acks": "all",
    }


def connection_config(bootstrap_servers: str, parsed: Mapping[str, Any]) -> dict[str, Any]:
    """For librdkafka clients that read or administrate: the connection options only."""
    connection = {n: v for n, v in parsed.items() if n in _RENAMED or n in _TLS or n.startswith(("socket.", "broker."))}
    return {**connection, "bootstrap.servers": bootstrap_servers}


def committing_config(bootstrap_servers: str, parsed: Mapping[str, Any]) -> dict[str, Any]:
    """The same connection for kafka-python.

    Raises:
        ConfigurationError: a certificate or key cannot be read.
    """
    config: dict[str, Any] = {"bootstrap_servers": [server.strip() for server in bootstrap_servers.split(",")]}
    config |= {_RENAMED[name]: value for name, value in parsed.items() if name in _RENAMED}
    protocol = str(config.get("security_protocol", "PLAINTEXT")).upper()
    config["security_protocol"] = protocol
    if "sasl_mechanism" in config:
        config["sasl_mechanism"] = str(config["sasl_mechanism"]).upper()
    elif protocol.startswith("SASL"):
        config["sasl_mechanism"] = "GSSAPI"  # librdkafka's default
    if protocol.endswith("SSL"):
        config["ssl_context"] = _tls_context(parsed)
    return config


def _tls_context(parsed: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=parsed.get("ssl.ca.location"), cadata=parsed.get("ssl.ca.pem"))
        if parsed.get("ssl.crl.location"):
            context.load_verify_locations(parsed["ssl.crl.location"])
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        if parsed.get("ssl.certificate.location"):
            context.load_cert_chain(
                parsed["ssl.certificate.location"], parsed.get("ssl.key.location"), parsed.get("ssl.key.password")
            )
        if parsed.get("ssl.cipher.suites"):
            context.set_ciphers(parsed["ssl.cipher.suites"])
    except (OSError, ssl.SSLError) as error:
        named = {PREFIX + name: value for name, value in parsed.items() if name.endswith(".location")}
        raise ConfigurationError(
            f"the TLS files {named} cannot be loaded: {error}. Correct the kafka.ssl.* options"
        ) from error
    if parsed.get("enable.ssl.certificate.verification", "true") == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif parsed.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    return context
