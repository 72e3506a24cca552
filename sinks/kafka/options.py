"""Check and convert the user's librdkafka options for two clients. The options have the prefix ``kafka.``, as in Spark.

librdkafka writes rows and decisions. kafka-python commits other processes' transactions (``twopc.sinks.kafka.transactions``).
Connection options must apply to both clients. An option that kafka-python does not support is therefore rejected rather
than ignored.

The names come from librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

import importlib
import pkgutil
import ssl
from typing import TYPE_CHECKING, Any, Final, cast

from twopc.errors import ConfigurationError
from twopc.redaction import flaws_in
from twopc.sinks.kafka import java_options
from twopc.sinks.kafka.oauth import Tokens, name_of
from twopc.sinks.kafka.oauth_requests import ClientCredentials, unsecured
from twopc.sinks.kafka.tls import tls_context

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "kafka."
_CALLBACK: Final = f"{PREFIX}oauth_cb"
#: Why a user must not set these options.
_OWNED: Final = {
    "each producer needs its own id, which consists of the sink name, driver epoch, worker and sequence number": (
        "transactional.id",
    ),
    "transactions need idempotence": ("enable.idempotence",),
    "a lost record must fail only its transaction, not the producer": ("enable.gapless.guarantee",),
    "transactions need acks=all": ("acks", "request.required.acks"),
    "idempotence limits the requests in flight": ("max.in.flight", "max.in.flight.requests.per.connection"),
    "idempotence makes retries safe, and only the transaction timeout limits them": (
        "retries",
        "message.send.max.retries",
    ),
    "a task's vote depends on the delivery reports": (
        "delivery.report.only.error",
        "dr_cb",
        "dr_msg_cb",
        "on_delivery",
    ),
    "the sink does not read the statistics, which cost more time and memory with each partition": (
        "statistics.interval.ms",
        "stats_cb",
    ),
    "the sink itself raises the client's errors": ("error_cb",),
    "set the argument bootstrap_servers instead": ("bootstrap.servers", "metadata.broker.list"),
    "the sink must read the ledger with read_committed": ("isolation.level",),
    "this timeout must equal the transaction timeout. Set kafka.transaction.timeout.ms instead": (
        "delivery.timeout.ms",
        "message.timeout.ms",
    ),
}
_REASONS: Final = {name: reason for reason, names in _OWNED.items() for name in names}
#: Connection options that have a different name in kafka-python.
_RENAMED: Final = {
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
}
#: Connection options that kafka-python expects in an ssl.SSLContext.
_TLS: Final = (
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.crl.location",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
)
#: Connection options that become a token provider for kafka-python.
_OAUTH: Final = (
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.config",
    "enable.sasl.oauthbearer.unsecure.jwt",
    "https.ca.location",
    "oauth_cb",
)
#: Connection options whose values are sent to a server, or unlock a key.
_LOGINS: Final = (
    "sasl.username",
    "sasl.password",
    "ssl.key.password",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.extensions",
)
_MECHANISMS: Final = ("GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_CONNECTION: Final = frozenset((*_RENAMED, *_TLS, *_OAUTH))


def check(options: Mapping[str, Any]) -> None:
    """Check the names of a user's options.

    Raises:
        ConfigurationError: an option lacks the prefix, is set by the sink itself, or is a connection option that the committing
            client does not support. Or a login contains a line break.
    """
    for option, value in options.items():
        name, given = option.removeprefix(PREFIX), f"option {option!r}={value!r}"
        if name == option:
            raise ConfigurationError(
                f"option {option!r} has no prefix. If this is a librdkafka option, set '{PREFIX}{option}'. Otherwise, "
                "remove the option"
            )
        if name in _REASONS:
            raise ConfigurationError(f"{given} cannot be set: {_REASONS[name]}. Remove the option")
        instead = java_options.answer(name, value)
        if instead:  # the value may be a secret
            raise ConfigurationError(f"option {option!r} is for Java clients, but the sink uses librdkafka. {instead}")
        connection = name.startswith(("ssl.", "sasl.", "https.ca")) or name in {"connect_cb", "resolve_cb"}
        if connection and name not in _CONNECTION:  # this value may be a secret, too
            known = sorted(PREFIX + n for n in _CONNECTION if n.startswith(("ssl.", "sasl.")))
            raise ConfigurationError(
                f"option {option!r} is set, but the client that commits prepared transactions does not support it. Set only "
                f"these options: {', '.join(known)}"
            )
        if _RENAMED.get(name) == "sasl_mechanism" and str(value).upper() not in _MECHANISMS:
            raise ConfigurationError(
                f"{given}: the client that commits prepared transactions does not support this mechanism. Set one of "
                f"{', '.join(_MECHANISMS)}"
            )
    logins = {option: value for option, value in options.items() if option.removeprefix(PREFIX) in _LOGINS}
    for problem in flaws_in(logins, are_passwords=True):
        raise ConfigurationError(f"KafkaSink(options=…): {problem}")


def with_tokens(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a user's ``oauth_cb`` to :class:`Tokens`.

    The option is a callable, or the name of a callable in the form ``module:function``.

    Raises:
        ConfigurationError: the value is neither a callable nor a callable's name.
    """
    callback = options.get(_CALLBACK)
    if callback is None or isinstance(callback, Tokens):
        return dict(options)
    try:
        function = pkgutil.resolve_name(callback) if isinstance(callback, str) else callback
    except (ImportError, AttributeError, ValueError) as error:
        cause = _failed_import(callback) or error
        if cause is error and ":" not in callback:  # the value may be a token
            raise ConfigurationError(
                f"option {_CALLBACK!r} is not the name of a callable. Set a callable, or 'module:function'"
            ) from None
        raise ConfigurationError(
            f"option {_CALLBACK!r}={callback!r} cannot be imported: {cause}. Set a callable, or 'module:function'"
        ) from cause
    if not callable(function):
        raise ConfigurationError(f"option {_CALLBACK!r} must be a function that returns a token and its expiry")
    config = options.get(f"{PREFIX}sasl.oauthbearer.config")
    return {**options, _CALLBACK: Tokens(function, name_of(function), config)}


def _failed_import(name: str) -> ImportError | None:
    """Return the error of an existing module whose own imports fail, such as ``pkg.tokens`` for the name ``pkg.tokens.fetch``."""
    parts = name.partition(":")[0].split(".")
    for end in range(1, len(parts) + 1):
        module = ".".join(parts[:end])
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            return None if error.name == module or error.name is None else error
        except ImportError as error:
            return error
        except ValueError:  # a part is empty
            return None
    return None


def without_network(parsed: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the options that would cause a new client to request tokens immediately."""
    return {name: value for name, value in parsed.items() if name not in {"oauth_cb", "sasl.oauthbearer.method"}}


def without_prefix(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options to librdkafka's format: the names have no prefix, and the values are strings or callables."""
    return {name.removeprefix(PREFIX): value if callable(value) else _text(value) for name, value in options.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def for_librdkafka(parsed: Mapping[str, Any]) -> dict[str, Any]:
    """Select the connection options for consumers and admin clients."""
    return {n: v for n, v in parsed.items() if n in _CONNECTION or n.startswith(("socket.", "broker."))}


def for_kafka_python(parsed: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the connection options for kafka-python.

    Raises:
        ConfigurationError: a certificate or key cannot be read, or no option supplies tokens.
    """
    config: dict[str, Any] = {_RENAMED[name]: value for name, value in parsed.items() if name in _RENAMED}
    protocol = config.get("security_protocol", "PLAINTEXT").upper()
    config["security_protocol"] = protocol
    if "sasl_mechanism" in config:
        config["sasl_mechanism"] = config["sasl_mechanism"].upper()
    elif protocol.startswith("SASL"):
        config["sasl_mechanism"] = "GSSAPI"  # the librdkafka default
    uses_tokens = protocol.startswith("SASL") and config["sasl_mechanism"] == "OAUTHBEARER"
    if uses_tokens:
        config["sasl_oauth_token_provider"] = _tokens(parsed)
    elif "oauth_cb" in parsed:  # confluent-kafka would wait for a token, although no client asks for one
        raise ConfigurationError(
            f"option {_CALLBACK!r} is set, but has no effect. Set kafka.security.protocol=SASL_SSL and "
            "kafka.sasl.mechanism=OAUTHBEARER, or remove the option"
        )
    if protocol.endswith("SSL"):
        config["ssl_context"] = _tls_context(parsed)
    return config


def _tokens(parsed: Mapping[str, Any]) -> Tokens:
    method = parsed.get("sasl.oauthbearer.method", "default").lower()
    ways = {
        "kafka.oauth_cb": parsed.get("oauth_cb"),
        "kafka.sasl.oauthbearer.method=oidc": method == "oidc",
        "kafka.enable.sasl.oauthbearer.unsecure.jwt=true": parsed.get("enable.sasl.oauthbearer.unsecure.jwt") == "true",
    }
    chosen = [way for way, is_set in ways.items() if is_set]
    if method not in {"default", "oidc"}:
        raise ConfigurationError(
            f"option 'kafka.sasl.oauthbearer.method'={method!r}: this method is unknown. Set 'oidc', or remove the option"
        )
    if len(chosen) != 1:
        raise ConfigurationError(
            "kafka.sasl.mechanism='OAUTHBEARER' needs exactly one source of tokens, but the options set "
            f"{' and '.join(chosen) or 'none'}. Set exactly one of {', '.join(ways)}"
        )
    if parsed.get("oauth_cb"):
        return cast("Tokens", parsed["oauth_cb"])
    if method == "oidc":
        return Tokens(ClientCredentials(parsed), "kafka.sasl.oauthbearer.method=oidc")
    config = parsed.get("sasl.oauthbearer.config")
    unsecured(config)
    return Tokens(unsecured, "kafka.enable.sasl.oauthbearer.unsecure.jwt", config)


def _tls_context(parsed: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        context = tls_context(cafile=parsed.get("ssl.ca.location"), cadata=parsed.get("ssl.ca.pem"))
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
            f"the TLS files {named} cannot be loaded: {error}. Fix the kafka.ssl.* options"
        ) from error
    if parsed.get("enable.ssl.certificate.verification", "true") == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif parsed.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    return context
