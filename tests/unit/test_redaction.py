"""Values that a client would quote are recognized without being shown, and known secrets are masked in any error."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from twopc.redaction import Redaction, flaw, flaws_in, is_header_name, secrets_in


@pytest.mark.parametrize("value", ["canary\n", "\tcanary", "can\rary", "can\0ary", "can\x7fary", "can\u2028ary"])
def test_a_control_character_is_a_flaw_that_is_described_without_the_value(value: str) -> None:
    assert flaw(value) == "contains a line break or another control character"


@pytest.mark.parametrize("value", ["canary\n", "\tcanary", "can\rary", "can\x7fary", "can\u2028ary"])
def test_a_password_may_contain_any_control_character_but_nul(value: str) -> None:
    assert flaw(value, is_password=True) == ""
    assert flaw(f"{value}\0", is_password=True) == "contains a NUL character"


@pytest.mark.parametrize("value", [" canary", "canary ", "canary\u00a0"])
def test_only_a_password_may_begin_or_end_with_a_blank(value: str) -> None:
    assert flaw(value) == "begins or ends with a blank"
    assert flaw(value, is_password=True) == ""


@pytest.mark.parametrize("value", ["", "can ary", "cänary…", "{canary"])
def test_other_values_have_no_flaw(value: str) -> None:
    assert flaw(value) == ""


def test_the_flaws_in_options_are_named_by_their_options_even_if_these_are_nested() -> None:
    options: dict[str, Any] = {
        "token": "canary\n",
        "user": " canary",
        "auth": {"basic": {"username": "canary ", "password": "canary\0"}},
        "number": 7,
        "account": '{"private_key":\n"canary"}\n',
        "pem": "subject=canary\n-----BEGIN PRIVATE KEY-----\ncanary\n",
        "fine": "canary",
    }
    said = list(flaws_in(options))
    assert [text.partition(". ")[0] for text in said] == [
        "the value of 'token' contains a line break or another control character",
        "the value of 'user' begins or ends with a blank",
        "the value of 'auth.basic.password' contains a NUL character",
    ]
    assert all("text.strip()" in text and "canary" not in text for text in said)


@pytest.mark.parametrize(("name", "is_valid"), [("X-Api-Key", True), ("X Api", False), ("X:Api", False), ("", False)])
def test_the_name_of_a_header_is_a_token(name: str, *, is_valid: bool) -> None:
    assert is_header_name(name) is is_valid


def test_the_secrets_in_options_are_found_by_the_names_and_in_uris() -> None:
    options: dict[str, Any] = {
        "uri": "postgresql://ann:a%2Fb@host/db",
        "warehouse": "shop",
        "token": "one",
        "s3.secret-access-key": "two",
        "s3.access-key-id": "test",
        "AWS_ACCESS_KEY_ID": "test",
        "header.X-Api": "three",
        "AZURE_STORAGE_SAS_TOKEN": "four",
        "adls.sas-token.account": "five",
        "adls.connection-string": "six",
        "token-refresh-enabled": "True",
        "auth": {"type": "basic", "basic": {"username": "ann", "password": "seven"}},
        "key": 8,
    }
    assert set(secrets_in(options)) == {"a%2Fb", "a/b", "one", "two", "three", "four", "five", "six", "seven"}


def test_a_secret_is_masked_in_each_form_in_which_a_client_may_quote_it() -> None:
    redacted = Redaction(["a/canary b\n", "it's\\canary", "ab"])
    assert redacted("'a/canary b\\n', a%2Fcanary%20b, a%2Fcanary+b; \"it's\\\\canary\"") == "'…\\n', …, …; \"…\""
    assert redacted("a bad day, a/can, abc") == "a bad day, a/can, abc"


@pytest.mark.parametrize(
    "quoted",
    [
        "{!r}",
        "{0}",
        "{1!r}",
        "{2}",
        "{3}",
        "{4}",
    ],
)
@pytest.mark.parametrize("secret", ["can\tary", "can\x01ary", "can\nary", "cän\r\nary", "can\u2028ary\x7f"])
def test_a_secret_with_a_control_character_is_masked_even_if_a_client_escapes_it(secret: str, quoted: str) -> None:
    forms = (secret, secret.encode(), json.dumps(secret), quote(secret), " ".join(secret.split()))
    shown = Redaction([secret])(f"Bearer {quoted.format(*forms)}")
    assert "…" in shown
    assert "ary" not in shown


def test_a_part_of_a_secret_is_masked_if_a_client_shows_only_the_first_line() -> None:
    assert Redaction(["canary\r\nother"])("cannot use canary") == "cannot use …"


def test_the_longest_secret_is_masked_first() -> None:
    assert Redaction(["canary", "canary-2"])("canary-2") == "…"


def test_an_error_is_a_cause_only_if_neither_it_nor_its_own_cause_shows_a_secret() -> None:
    redacted = Redaction()
    redacted.add(["canary"])
    error = KeyError("token")
    assert redacted.cause(error) is error
    error.__cause__ = ValueError("Invalid header value b'canary'")
    assert redacted.cause(error) is None
