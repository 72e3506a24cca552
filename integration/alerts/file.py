"""Read a rules file. Like other options files, a rules file has ``key=value`` lines. A key is ``<rule>.<setting>``."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import ConfigurationError
from twopc.integration.alerts.channels import Channel, Webhook, to_log
from twopc.integration.alerts.rules import ConsecutiveFailures, FailedCheckpoints, NoCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from twopc.integration.alerts.rules import Rule

#: A colon that is not part of a rule's name, as if the line were ``key: value``. A value may be a secret.
_COLON: Final = re.compile(r"^(webhook|log):|:(\s|//|$)")
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class RuleFile:
    """The content of a rules file.

    Attributes:
        rules: the rules, in the file's order.
        channels: the channels for alerts.
    """

    rules: tuple[Rule, ...]
    channels: tuple[Channel, ...]


def read_rules(path: Path) -> RuleFile:
    """Read a rules file.

    Raises:
        ConfigurationError: the file cannot be read, or a key is wrong. The message identifies the key.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    try:
        return _parse(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def require_names(rules: Sequence[Rule]) -> None:
    """Check that no two rules have the same name, because a rule's name identifies its episodes.

    Raises:
        ConfigurationError: two rules have the same name.
    """
    for name, times in Counter(rule.name for rule in rules).items():
        if times > 1:
            raise ConfigurationError(f"{times} rules are called {name}. Give each rule its own name")


def _parse(text: str) -> RuleFile:
    sections: dict[str, dict[str, str]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        section, dot, name = key.partition(".")
        # If a colon follows the setting, an '=' in the value (for example, in a token) would end the key. A rule's name may
        # contain a colon.
        is_value_in_key = ":" in name or (":" in section and not name) or _COLON.search(section)
        if not equals or not section or bool(dot) is not bool(name) or is_value_in_key:
            raise ConfigurationError(f"line {number} is not in the form <rule>.<setting>=<value>")
        if name in sections.setdefault(section, {}):
            # A key with a colon may be a header that was pasted without its own key, so do not show it.
            raise ConfigurationError(f"{f'line {number}' if ':' in key else key}: set twice")
        sections[section][name] = value
    log, webhook = sections.pop("log", {"": "yes"}), sections.pop("webhook", None)
    channels = [to_log] if _settings("log", log, {"": ("", _switch)}).get("", True) else []
    for section, settings in sections.items():
        # The name may be a header that was pasted without its key, so do not show it.
        if ":" in section and "kind" not in settings:
            raise ConfigurationError(
                "a rule whose name contains a colon has no kind. Add <rule>.kind=<kind> for this rule"
            )
    if not sections:
        raise ConfigurationError("the file contains no rules. Add a rule, such as consecutive.count=3")
    return RuleFile(
        tuple(_rule(name, settings) for name, settings in sections.items()),
        (*channels, *([] if webhook is None else [_webhook(webhook)])),
    )


def _rule(name: str, given: Mapping[str, str]) -> Rule:
    kind = given.get("kind", name)
    if kind not in _KINDS:
        kinds = ", ".join(_KINDS)
        raise ConfigurationError(
            f"{name}.kind: {kind!r} is not a kind of rule. Use one of {kinds}. If you omit the setting, the rule's "
            "name is used as the kind"
        )
    make, known = _KINDS[kind]
    settings = {key: value for key, value in given.items() if key != "kind"}
    rule: Rule = make(name=name, **_settings(name, settings, known))
    return rule


def _webhook(given: Mapping[str, str]) -> Webhook:
    headers = {key.partition(".")[2]: value for key, value in given.items() if key.startswith("header.")}
    rest = {key: value for key, value in given.items() if not key.startswith("header.")}
    found = _settings("webhook", rest, _WEBHOOK)
    if "url" not in found:
        raise ConfigurationError("webhook.url: missing")
    return Webhook(**found, headers=headers)


def _settings(
    section: str, given: Mapping[str, str], known: Mapping[str, tuple[str, Callable[[str], Any]]]
) -> dict[str, Any]:
    found = {}
    for key, value in given.items():
        full = f"{section}.{key}" if key else section
        if key not in known:
            raise ConfigurationError(f"{full} is not a setting. The settings are: {', '.join(known) or 'none'}")
        name, convert = known[key]
        try:
            found[name] = convert(value)
        except ValueError as error:
            raise ConfigurationError(f"{full}: {error}") from None
    return found


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _duration(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration. Write 90s, 15m or 2h")
    return float(found[1]) * _UNITS[found[2]]


def _switch(text: str) -> bool:
    if text.lower() not in {"yes", "no", "true", "false"}:
        raise ValueError(f"{text!r} is neither yes nor no")
    return text.lower() in {"yes", "true"}


_KINDS: Final[dict[str, tuple[Any, dict[str, tuple[str, Callable[[str], Any]]]]]] = {
    "failures": (
        FailedCheckpoints,
        {
            "total": ("total", _whole),
            "growth": ("growth", _whole),
            "window": ("window_s", _duration),
            "growth_window": ("growth_window_s", _duration),
            "every": ("every_s", _duration),
        },
    ),
    "consecutive": (ConsecutiveFailures, {"count": ("count", _whole)}),
    "stalled": (NoCheckpoint, {"for": ("for_s", _duration), "only_planned": ("is_of_planned", _switch)}),
}
_WEBHOOK: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "url": ("url", str),
    "timeout": ("timeout_s", _duration),
    "attempts": ("attempts", _whole),
}
