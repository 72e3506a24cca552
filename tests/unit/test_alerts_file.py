"""The file of rules: its content, and its faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twopc.errors import ConfigurationError
from twopc.integration.alerts import ConsecutiveFailures, FailedCheckpoints, NoCheckpoint, Webhook, to_log
from twopc.integration.alerts.file import read_rules

if TYPE_CHECKING:
    from pathlib import Path

ALL = """
# a team's rules
failures.total = 3
failures.growth = 2
failures.window = 20m
failures.growth_window=300
failures.every = 60s
consecutive.count = 5
stalled.for = 1.5h
stalled.only_planned = yes
page-somebody.kind = stalled
page-somebody.for = 4h
webhook.url = https://hooks.test/T0/secret=1
webhook.timeout = 2s
webhook.attempts = 4
webhook.header.Authorization = Bearer abc=
"""


def _read(tmp_path: Path, text: str) -> tuple[tuple[object, ...], tuple[object, ...]]:
    path = tmp_path / "alerts.properties"
    path.write_text(text)
    found = read_rules(path)
    return found.rules, found.channels


def test_every_setting_is_read(tmp_path: Path) -> None:
    rules, channels = _read(tmp_path, ALL)
    assert rules == (
        FailedCheckpoints("failures", total=3, growth=2, window_s=1_200, growth_window_s=300, every_s=60),
        ConsecutiveFailures("consecutive", 5),
        NoCheckpoint("stalled", for_s=5_400, is_of_planned=True),
        NoCheckpoint("page-somebody", for_s=14_400),
    )
    log, webhook = channels
    assert log is to_log
    assert isinstance(webhook, Webhook)
    assert (webhook.url, webhook.timeout_s, webhook.attempts) == ("https://hooks.test/T0/secret=1", 2, 4)
    assert webhook.headers == {"Authorization": "Bearer abc="}
    assert "secret" not in repr(webhook)
    assert "abc" not in repr(webhook)


def test_the_defaults_are_fifteen_ten_and_five_minutes(tmp_path: Path) -> None:
    (rule,), _ = _read(tmp_path, "failures.total=0")
    assert rule == FailedCheckpoints("failures", total=0, window_s=900, growth_window_s=600, every_s=300)


def test_the_log_can_be_switched_off(tmp_path: Path) -> None:
    assert _read(tmp_path, "consecutive.count=3\nlog=no")[1] == ()


def test_the_name_of_a_rule_may_contain_a_colon(tmp_path: Path) -> None:
    rules, _ = _read(tmp_path, "prod:orders.kind = stalled\nprod:orders.for = 4h\n")
    assert rules == (NoCheckpoint("prod:orders", for_s=14_400),)


@pytest.mark.parametrize(
    "line",
    [
        "X-Api-Key:s3cr3t==",
        "Authorization:Basic_s3cr3t=",
        "Authorization:Bearer_s3cr3t.x.y=",
        "A:s3cr3t.x=\nA:s3cr3t.x=",
    ],
)
def test_a_header_that_was_pasted_without_its_key_is_not_shown(line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        _read(tmp_path, line)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file contains no rules"),
        ("log=yes", "the file contains no rules"),
        ("consecutive.count", "line 1 is not"),
        ("\ncount=3", "count.kind: 'count' is not a kind of rule. Use one of failures, consecutive, stalled"),
        ("consecutive.=3", "line 1 is not"),
        ("mine.kind=growth", "mine.kind: 'growth' is not a kind"),
        ("consecutive.cuont=3", "consecutive.cuont is not a setting. The settings are: count"),
        ("consecutive.count=three", "consecutive.count: 'three' is not a whole number"),
        ("consecutive.count=-1", "consecutive.count: '-1' is not a whole number"),
        ("consecutive.count=0", "consecutive.count: 0 is too small"),
        ("consecutive.count=1\nconsecutive.count=2", "consecutive.count: set twice"),
        ("failures.window=15m", "failures.total: the rule has no threshold. Set failures.total or failures.growth"),
        ("stalled.for=soon", "stalled.for: 'soon' is not a duration"),
        ("stalled.for=0s", "stalled.for: 0 is too small"),
        ("stalled.only_planned=maybe", "stalled.only_planned: 'maybe' is neither yes nor no"),
        ("log=maybe\nconsecutive.count=1", "log: 'maybe' is neither yes nor no"),
        ("log.file=x\nconsecutive.count=1", "log.file is not a setting"),
        ("webhook.timeout=2s\nconsecutive.count=1", "webhook.url: missing"),
        ("webhook.url=ftp://secret\nconsecutive.count=1", "webhook.url must be http"),
        ("webhook.url=http:///secret\nconsecutive.count=1", "webhook.url must be http"),
        ("webhook.url=http://[secret\nconsecutive.count=1", "webhook.url must be http"),
        ("webhook.url=http://a\nwebhook.timeout=0s\nconsecutive.count=1", "webhook.timeout"),
        ("webhook.header=x\nconsecutive.count=1", "webhook.header is not a setting"),
        ("webhook.url=https://a/secret # team\nconsecutive.count=1", "webhook.url must be http"),
        ("webhook.url: https://a/secret?b=c\nconsecutive.count=1", "line 1 is not"),
        ("consecutive.count=1\nwebhook.header.Authorization: Bearer secret==", "line 2 is not"),
        ("webhook:header.Authorization secret==\nconsecutive.count=1", "line 1 is not"),
        ("Authorization: Bearer secret.a=\nconsecutive.count=1", "line 1 is not"),
        ("url:https://a/secret.a?b=c\nconsecutive.count=1", "line 1 is not"),
        (
            "webhook.url=http://a\nwebhook.header.Authorization Bearer secret==\nconsecutive.count=1",
            "webhook.header.<name>",
        ),
    ],
)
def test_an_error_mentions_its_key_and_shows_no_secrets(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as found:
        _read(tmp_path, text)
    assert str(found.value).startswith(f"{tmp_path / 'alerts.properties'}: {message}")
    assert "secret" not in str(found.value)


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no\.properties cannot be read"):
        read_rules(tmp_path / "no.properties")
