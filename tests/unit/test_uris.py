"""A URI is shown without its secrets, and a URL that a client would quote in its error is recognized."""

from __future__ import annotations

import pytest

from twopc.uris import has_secrets, is_readable, is_sendable, passwords_in, shown


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://AKIA:canary@bucket/p?region=x", "s3://…@bucket/p"),
        ("s3://AKIA:canary%2Fcanary@bucket/p", "s3://…@bucket/p"),
        ("s3://AKIA:can/canary@bucket/p", "s3://…@bucket/p"),  # not escaped
        ("s3://AKIA:can@canary/can@bucket/p", "s3://…@bucket/p"),
        ("s3://AKIA:can?ary@bucket/p", "s3://…@"),
        ("s3://AKIA:can#ary@bucket/p", "s3://…@"),
        ("https://canary@host/x#canary", "https://…@host/x"),
        ("abfss://:canary@account.dfs.core.windows.net/c/p", "abfss://…@account.dfs.core.windows.net/c/p"),
        ("abfss://box:canary@account.dfs.core.windows.net/p", "abfss://box@account.dfs.core.windows.net/p"),
        ("s3://bucket/p?secret_key=canary", "s3://bucket/p"),
        ("postgresql://ann@host:canary@host.example:5432/db", "postgresql://…@host.example:5432/db"),
        ("https://ann@host:80/p/a:b@c", "https://…@host:80/p/a:b@c"),
        ("https://ann@[::1]:80/p/a:b@c", "https://…@[::1]:80/p/a:b@c"),
    ],
)
def test_a_uri_is_shown_without_user_password_and_options(uri: str, expected: str) -> None:
    assert shown(uri) == expected
    assert has_secrets(uri)


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/p",
        "hdfs://name:8020/p/a@b",
        "hdfs://[::1]:8020/p/a@b",
        "s3://bucket/p/a@b:c",
        "s3://bucket/tenant:eu@prod/orders",
        "abfss://box@account.dfs.core.windows.net/tenant:eu@prod",
        "s3://bucket/a@b:c@d",
        "abfss://box@account.dfs.core.windows.net/p",
        "/data/a?b#c",
        "/data/ann:x@y",
        "file:/data/a?b",
        "file:///data/ann:x@y?b",
        "C:\\data",
    ],
)
def test_a_text_without_secrets_is_shown_as_it_is(text: str) -> None:
    assert shown(text) == text
    assert not has_secrets(text)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://AKIA:a%2Fb@bucket/p", {"a%2Fb", "a/b"}),
        ("postgresql://ann:p@ss:word@host/db", {"p@ss:word"}),
        ("s3://AKIA:a?b@bucket/p", {"a?b@bucket/p"}),
        ("postgresql://ann@host:word@host.example:5432/db", {"word"}),
        ("https://ann@host/", set()),
        ("hdfs://name:8020/p", set()),
        ("/data/ann:x@y", set()),
    ],
)
def test_the_password_in_a_uri_is_found_escaped_and_unescaped(uri: str, expected: set[str]) -> None:
    assert set(passwords_in(uri)) == expected


@pytest.mark.parametrize("url", ["https://host/x?y=z", "http://host:80/", "HTTPS://host", "http://[::1]:80/%20"])
def test_a_url_that_a_client_accepts(url: str) -> None:
    assert is_sendable(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host/x",
        "ftp://host/",
        "https:///x",
        "https://host/a b",
        "https://host/\n",
        " https://host/",
        "https://höst/",
        "https://host:port/",
        "https://host:99999/",
        "https://host:0/",
        "https://[host/",
        "https://ann@host/",
        "https://ann:x@host/",
    ],
)
def test_a_url_that_a_client_quotes_in_its_error_or_that_contains_a_user(url: str) -> None:
    assert not is_sendable(url)


@pytest.mark.parametrize("url", ["http://host/", "HTTP://10.0.0.1:80/", "http://127.example/", "http://[2001:db8::1]/"])
def test_what_is_sent_to_another_host_without_encryption_is_readable(url: str) -> None:
    assert is_readable(url)


@pytest.mark.parametrize(
    "url", ["https://host/", "http://localhost:80/", "http://a.localhost/", "http://127.0.0.2/", "http://[::1]:80/"]
)
def test_what_is_encrypted_or_stays_on_this_host_is_not_readable(url: str) -> None:
    assert not is_readable(url)
