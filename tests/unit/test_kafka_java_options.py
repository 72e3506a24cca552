"""Options that people bring from Java are refused with the option to set instead, and without their secrets."""

from __future__ import annotations

import pytest

from twopc.errors import ConfigurationError
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.java_options import ANSWERS, LOGIN_MODULES

CANARY = "canary-7f3a"


def refusal(**options: str) -> str:
    with pytest.raises(ConfigurationError) as raised:
        KafkaSink(
            name="s", bootstrap_servers="b:1", options={f"kafka.{name}": value for name, value in options.items()}
        )
    assert CANARY not in "".join(map(str, [raised.value, raised.value.__cause__, raised.value.__context__]))
    return str(raised.value)


@pytest.mark.parametrize("name", ANSWERS)
def test_the_error_for_each_name_says_what_to_set(name: str) -> None:
    option, _, value = name.partition("=")
    text = refusal(**{option: value or CANARY})
    assert f"option 'kafka.{option}' is for Java clients" in text
    assert "kafka." in text.split("librdkafka. ")[1] or "Remove this option" in text


def test_a_partitioner_class_is_replaced_and_not_only_removed() -> None:
    """Without the class, keys move to other partitions, and nothing else says so."""
    text = refusal(**{"partitioner.class": "com.example.ByRegion"})
    assert "Remove this option" not in text
    assert "Set kafka.partitioner to the same hash, or add a partition column" in text


@pytest.mark.parametrize(
    ("jaas", "expected"),
    [
        (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="{CANARY}";',
            ["kafka.sasl.mechanism=PLAIN", "kafka.sasl.username=ann", "kafka.sasl.password=<password>"],
        ),
        (
            f"a.ScramLoginModule required\n  password='{CANARY} username=x;'\n  username=ann;",
            ["SCRAM-SHA-256 or SCRAM-SHA-512", "kafka.sasl.username=ann", "kafka.sasl.password=<password>"],
        ),
        (
            f'kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule required password="{CANARY}"',
            ["kafka.sasl.username=<username>", "kafka.sasl.password=<password>"],
        ),
        (
            f'a.b.OAuthBearerLoginModule required clientId="job" clientSecret="a\\"{CANARY}" scope="kafka";',
            [
                "kafka.sasl.mechanism=OAUTHBEARER",
                "kafka.sasl.oauthbearer.client.id=job",
                "client.secret=<clientSecret>",
                "scope=kafka",
                "token.endpoint.url",
            ],
        ),
        (
            f'software.amazon.msk.auth.iam.IAMLoginModule required awsProfileName="{CANARY}";',
            ["kafka.oauth_cb", "AWS MSK IAM"],
        ),
        (
            'a.Krb5LoginModule required keyTab="/etc/job.keytab" principal="job@EXAMPLE.COM" serviceName="kafka";',
            ["kafka.sasl.mechanism=GSSAPI", "service.name=kafka", "kinit -kt /etc/job.keytab job@EXAMPLE.COM"],
        ),
        (f'com.example.Unknown required password="{CANARY}";', ["one of PlainLoginModule"]),
        (f"{CANARY}", ["one of PlainLoginModule"]),
        ("", ["one of PlainLoginModule"]),
    ],
)
def test_a_jaas_configuration_is_refused_with_its_equivalent_options_but_never_with_a_password(
    jaas: str, expected: list[str]
) -> None:
    text = refusal(**{"sasl.jaas.config": jaas})
    assert [part for part in expected if part not in text] == []


def test_librdkafkas_other_name_for_the_mechanism_gets_the_same_error() -> None:
    assert "generate_auth_token" in refusal(**{"sasl.mechanisms": "aws_msk_iam"})


def test_every_login_module_has_a_mechanism() -> None:
    assert all("kafka.sasl.mechanism=" in module.settings for module in LOGIN_MODULES.values())
