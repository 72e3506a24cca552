"""Give advice on the security options of Java Kafka clients. Neither client library that this sink uses is a Java client.

Sources: Kafka's ``SslConfigs``, ``SaslConfigs`` and login modules; librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_AUTHORITY: Final = (
    "Set kafka.ssl.ca.location=ca.pem. To create this file: keytool -list -rfc -keystore truststore.jks > ca.pem"
)
_CERTIFICATE: Final = (
    "Set kafka.ssl.certificate.location=client.pem and kafka.ssl.key.location=client.key, with kafka.ssl.key.password. To "
    "create these files: keytool -importkeystore -srckeystore keystore.jks -destkeystore client.p12 -deststoretype PKCS12; "
    "openssl pkcs12 -in client.p12 -nokeys -out client.pem; openssl pkcs12 -in client.p12 -nocerts -out client.key"
)
_TLS: Final = "Remove this option: OpenSSL chooses the TLS version, 1.2 or newer"
_REMOVE: Final = "Remove this option: only Java clients use it"
_BYTES: Final = "Remove this option: the sink sends bytes"
_PARTITIONER: Final = (
    "Set kafka.partitioner to the same hash, or add a partition column with the partition that your class chooses. Without "
    "either, keys may move to other partitions"
)
_TOKENS: Final = "Set kafka.oauth_cb to a function that returns a token, or set kafka.sasl.oauthbearer.method=oidc"
_RENEWAL: Final = "Remove this option: tokens are renewed automatically"

#: The advice for each option, by Java name or name=value.
ANSWERS: Final = {
    "sasl.jaas.config": "Set the options that replace the login module (see the next table)",
    "sasl.mechanism=AWS_MSK_IAM": (
        "Set kafka.sasl.mechanism=OAUTHBEARER, and set kafka.oauth_cb to a function that calls "
        "MSKAuthTokenProvider.generate_auth_token (see docs/security.md)"
    ),
    "sasl.login.callback.handler.class": _TOKENS,
    "sasl.client.callback.handler.class": _TOKENS,
    "sasl.login.class": _TOKENS,
    "sasl.oauthbearer.client.credentials.client.id": "Set kafka.sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "Set kafka.sasl.oauthbearer.client.secret",
    "sasl.kerberos.kinit.cmd": (
        "Remove this option. Instead, run kinit on the driver and the executors, because both Kafka clients use kinit's ticket"
    ),
    "ssl.truststore.location": _AUTHORITY,
    "ssl.truststore.type": _AUTHORITY,
    "ssl.truststore.password": f"{_AUTHORITY}. PEM files with certificates need no password",
    "ssl.truststore.certificates": "Set kafka.ssl.ca.pem to the same text",
    "ssl.keystore.location": _CERTIFICATE,
    "ssl.keystore.type": _CERTIFICATE,
    "ssl.keystore.password": _CERTIFICATE,
    "ssl.keystore.certificate.chain": "Write the certificates to a file, and set kafka.ssl.certificate.location to its path",
    "ssl.keystore.key": "Write the key to a file, and set kafka.ssl.key.location to its path",
    "ssl.protocol": _TLS,
    "ssl.enabled.protocols": _TLS,
    **dict.fromkeys(
        (
            "ssl.provider",
            "ssl.keymanager.algorithm",
            "ssl.trustmanager.algorithm",
            "ssl.secure.random.implementation",
            "ssl.engine.factory.class",
            "security.providers",
        ),
        _REMOVE,
    ),
    **dict.fromkeys(
        (
            "sasl.login.refresh.window.factor",
            "sasl.login.refresh.window.jitter",
            "sasl.login.refresh.min.period.seconds",
            "sasl.login.refresh.buffer.seconds",
            "sasl.login.connect.timeout.ms",
            "sasl.login.read.timeout.ms",
            "sasl.login.retry.backoff.ms",
            "sasl.login.retry.backoff.max.ms",
        ),
        _RENEWAL,
    ),
    **dict.fromkeys(("key.serializer", "value.serializer", "key.deserializer", "value.deserializer"), _BYTES),
    "partitioner.class": _PARTITIONER,
}


class LoginModule(NamedTuple):
    """Advice on a login module in ``sasl.jaas.config``.

    Attributes:
        settings: the options to set. ``{username}`` stands for the module's option with that name.
        shown: the module's options whose values may appear in a message. The values of all other options become
            ``<…>``.
        advice: more advice.
    """

    settings: str
    shown: tuple[str, ...] = ()
    advice: str = ""


_USER: Final = "kafka.sasl.username={username} and kafka.sasl.password={password}"
#: The login modules, by class name without the package.
LOGIN_MODULES: Final = {
    "PlainLoginModule": LoginModule(f"kafka.sasl.mechanism=PLAIN, {_USER}", ("username",)),
    "ScramLoginModule": LoginModule(f"kafka.sasl.mechanism=SCRAM-SHA-256 or SCRAM-SHA-512, {_USER}", ("username",)),
    "OAuthBearerLoginModule": LoginModule(
        "kafka.sasl.mechanism=OAUTHBEARER, kafka.sasl.oauthbearer.method=oidc, kafka.sasl.oauthbearer.client.id={clientId}, "
        "kafka.sasl.oauthbearer.client.secret={clientSecret}, kafka.sasl.oauthbearer.scope={scope} and "
        "kafka.sasl.oauthbearer.token.endpoint.url",
        ("clientId", "scope"),
        "Or set kafka.oauth_cb to a function that returns a token",
    ),
    "IAMLoginModule": LoginModule(
        "kafka.sasl.mechanism=OAUTHBEARER and kafka.oauth_cb",
        advice="docs/security.md shows the function for AWS MSK IAM",
    ),
    "Krb5LoginModule": LoginModule(
        "kafka.sasl.mechanism=GSSAPI and kafka.sasl.kerberos.service.name={serviceName}",
        ("serviceName", "principal", "keyTab"),
        "Get a ticket on the driver and the executors: kinit -kt {keyTab} {principal}. Both Kafka clients use this ticket. Do "
        "not set kafka.sasl.kerberos.keytab or kafka.sasl.kerberos.principal",
    ),
}
_JAAS: Final = re.compile(r"\s*(?:[\w$]+\.)*(?P<module>[\w$]+)\s+\w+(?P<options>.*)", re.DOTALL)
_JAAS_OPTION: Final = re.compile(r"""([\w.-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")


def answer(name: str, value: object) -> str | None:
    """Return advice on an option, without secrets. Return None if Java has no option with this name.

    ``name`` does not include the prefix.
    """
    if name == "sasl.jaas.config":
        return _jaas(str(value))
    return ANSWERS.get(name) or ANSWERS.get(f"{name.replace('mechanisms', 'mechanism')}={str(value).upper()}")


def _jaas(text: str) -> str:
    found = _JAAS.match(text)
    module = LOGIN_MODULES.get(found["module"]) if found else None
    if found is None or module is None:
        known = ", ".join(LOGIN_MODULES)
        return f"The login module must be one of {known}. Set kafka.sasl.mechanism and that mechanism's options"
    given = {name: quoted or single or bare for name, quoted, single, bare in _JAAS_OPTION.findall(found["options"])}

    def value(option: re.Match[str]) -> str:
        name = option[1]
        return given[name] if name in module.shown and name in given else f"<{name}>"

    settings = re.sub(r"\{(\w+)\}", value, f"{module.settings}. {module.advice}").strip().rstrip(".")
    return f"Instead of {found['module']}, set {settings}"
