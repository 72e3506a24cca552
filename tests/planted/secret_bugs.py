"""Mistakes that show a secret, or that give one tenant what belongs to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.planted.bug import one_edit

if TYPE_CHECKING:
    from tests.planted.bug import Bug


def _bug(name: str, path: str, old: str, new: str, caught_by: str) -> Bug:
    return one_edit(f"secrets: {name}", 0, path, old, new, model=False, protocol=f"tests/{caught_by}")


SECRET_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "an alert's log shows a header that cannot be sent",
        "integration/alerts/channels.py",
        "            _require_header(name, value)\n",
        "            pass\n",
        "unit/test_alerts_webhook.py -k cannot_send",
    ),
    _bug(
        "a rules file with a colon in a rule's name is refused",
        "integration/alerts/file.py",
        'is_value_in_key = ":" in name or (":" in section and not name) or _COLON.search(section)',
        'is_value_in_key = ":" in key',
        "unit/test_alerts_file.py -k colon",
    ),
    _bug(
        "an error about a rules file shows a header after a colon",
        "integration/alerts/file.py",
        'is_value_in_key = ":" in name or (":" in section and not name) or _COLON.search(section)',
        'is_value_in_key = ":" in name or (":" in section and not name)',
        "unit/test_alerts_file.py -k no_secrets",
    ),
    _bug(
        "an alert's log shows the client's words about a request",
        "integration/alerts/channels.py",
        'raise OSError(f"webhook {self._host}: {type(error).__name__}") from None',
        'raise OSError(f"webhook {self._host}: {error}") from None',
        "unit/test_alerts_webhook.py -k own_words",
    ),
    _bug(
        "a password with an unescaped slash is shown",
        "twopc/uris.py",
        "    if secret := _PASSWORD.match(rest):\n",
        '    if secret := _PASSWORD.match(rest.partition("/")[0]):\n',
        "unit/test_uris.py",
    ),
    _bug(
        "an error's own cause shows a secret",
        "twopc/redaction.py",
        'text = "".join(traceback.format_exception(error))',
        "text = str(error)",
        "unit/test_redaction.py -k own_cause",
    ),
    _bug(
        "a catalog's header with a line break reaches the client",
        "sinks/iceberg/catalogs.py",
        "    yield from flaws_in(catalog)\n",
        "",
        "unit/test_secret_settings.py -k Iceberg",
    ),
    _bug(
        "a part of an SQL catalog's password reaches the client as its host",
        "sinks/iceberg/catalogs.py",
        "_SQL.fullmatch(uri) is not None",
        "_SQL.match(uri) is not None",
        "unit/test_secret_settings.py -k SQL",
    ),
    _bug(
        "a lakehouse client's error shows its secrets",
        "sinks/lake/errors.py",
        "text = shortened(self.redacted(words))",
        "text = shortened(words)",
        "unit/test_secret_settings.py -k no_error",
    ),
    _bug(
        "a lakehouse client's error loses its meaning if a word of it is also a password",
        "sinks/lake/errors.py",
        "self._meaning(error, words)",
        "self._meaning(error, self.redacted(words))",
        "unit/test_secret_settings.py -k masked_error",
    ),
    _bug(
        "PostgreSQL: a refusal loses its meaning if a word of it is also a password",
        "sinks/postgres/options.py",
        "            hidden.sqlstate = state_of(error)",
        "            hidden.sqlstate = None",
        "unit/test_secret_settings.py -k masked_refusal",
    ),
    _bug(
        "an SQL catalog's user with an at sign is refused",
        "sinks/iceberg/catalogs.py",
        "://([^:/]*(:",
        "://([^:/@]*(:",
        "unit/test_secret_settings.py -k accepted",
    ),
    _bug(
        "a password after a user with an at sign is not masked",
        "twopc/uris.py",
        "([^:/]*):(?!",
        "([^:/@]*):(?!",
        "unit/test_uris.py -k password",
    ),
    _bug(
        "a colon and an at sign in a path count as a password",
        "twopc/uris.py",
        "([^:/]*):(?!",
        "([^:]*):(?!",
        "unit/test_uris.py -k without_secrets",
    ),
    _bug(
        "the id of an access key is masked in every message",
        "twopc/redaction.py",
        "key(?![-_.]?id$)",
        "key",
        "unit/test_redaction.py -k secrets_in_options",
    ),
    _bug(
        "the cause of a lakehouse client's error shows its secrets",
        "sinks/lake/errors.py",
        "from self.redacted.cause(error)",
        "from error",
        "unit/test_secret_settings.py -k no_error",
    ),
    _bug(
        "secrets from pyiceberg's own configuration are shown",
        "sinks/iceberg/store.py",
        "secrets_in(whole(self._properties))",
        "secrets_in(self._properties)",
        "unit/test_secret_settings.py -k a_secret_from_the_environment",
    ),
    _bug(
        "a catalog's token with a line break in the environment reaches the client",
        "sinks/iceberg/settings.py",
        "        for objection in objections(properties):\n",
        "        for objection in ():\n",
        "unit/test_secret_settings.py -k in_the_environment_are_checked",
    ),
    _bug(
        "a login of a catalog in the environment is sent without encryption, and no warning says so",
        "sinks/iceberg/settings.py",
        "        if logs_in_readably(properties):\n",
        "        if logs_in_readably(self.catalog):\n",
        "unit/test_secret_settings.py -k readable_login",
    ),
    _bug(
        "Delta: every message shows a key in the table's URI",
        "sinks/delta/settings.py",
        "        if has_secrets(self.table_uri):",
        "        if False:",
        "unit/test_secret_settings.py -k Delta",
    ),
    _bug(
        "a password with a line break is refused",
        "twopc/redaction.py",
        "    if is_password:\n",
        "    if is_password and not _CONTROL.search(value):\n",
        "unit/test_secret_settings.py -k accepted",
    ),
    _bug(
        "PostgreSQL: a password is cut off at a NUL character",
        "sinks/postgres/options.py",
        '    if "\\0" in dsn:\n',
        "    if False:\n",
        "unit/test_secret_settings.py -k quotes",
    ),
    _bug(
        "PostgreSQL: a database's name may end in a line break",
        "sinks/postgres/options.py",
        "    for name in sorted(found.keys() - set(_SECRETS)):\n",
        "    for name in ():\n",
        "unit/test_secret_settings.py -k PostgreSQL",
    ),
    _bug(
        "a secret with a control character is shown in an escaped form",
        "twopc/redaction.py",
        "repr(text.encode())[2:-1], json.dumps(text)[1:-1]",
        "",
        "unit/test_redaction.py -k escapes",
    ),
    _bug(
        "the first line of a secret is shown",
        "twopc/redaction.py",
        ", *map(str.strip, secret.splitlines())",
        "",
        "unit/test_redaction.py -k first_line",
    ),
    _bug(
        "Kafka: the failed import of a callback's module is not shown",
        "sinks/kafka/options.py",
        "cause = _failed_import(callback) or error",
        "cause = error",
        "unit/test_kafka_oauth.py -k own_import",
    ),
    _bug(
        "Kafka: a token given as a callback is shown",
        "sinks/kafka/options.py",
        '        if cause is error and ":" not in callback:',
        "        if False:",
        "unit/test_secret_settings.py -k callback",
    ),
    _bug(
        "Kafka: a client secret leaves the host in clear without a warning",
        "sinks/kafka/oauth_requests.py",
        "        if is_readable(self.options[_ENDPOINT]):\n",
        "        if False:\n",
        "unit/test_secret_settings.py -k without_encryption",
    ),
    _bug(
        "a forged savepoint writes files outside the new checkpoint",
        "integration/operate/manifest.py",
        "        if not is_inside(name):",
        "        if False:",
        "unit/test_savepoint.py -k forged",
    ),
    _bug(
        "a decision makes a task read a file outside the staging location",
        "integration/spark/staging.py",
        "        if not is_inside(name):",
        "        if False:",
        "unit/test_spark_staging.py -k leads_out",
    ),
    _bug(
        "preflight advises an ACL that covers the ledgers of other sinks",
        "integration/preflight/stand_in.py",
        '    return f"{sink.ledger}.{_OWN}"\n',
        "    return sink.ledger\n",
        "unit/test_preflight.py -k acl",
    ),
    _bug(
        "a strange transactional id of another program ends the operator's commands",
        "sinks/kafka/handle.py",
        "if _EPOCH.fullmatch(epoch):",
        "if epoch.isdigit():",
        "unit/test_preflight.py -k another_programs",
    ),
    _bug(
        "Redis: the advice asks for permissions on the keys of all sinks",
        "sinks/redis/errors.py",
        "'twopc:<sink name>:*'",
        "'twopc:*'",
        "live/redis/test_rights.py -k no_key_of_another",
    ),
    _bug(
        "messages about staged rows show the keys in the location",
        "integration/spark/staging_location.py",
        "    return shown(below(location, name) if name else location)\n",
        "    return below(location, name) if name else location\n",
        "unit/test_spark_staging.py -k shows_a_key",
    ),
    _bug(
        "the cause of an error about staged rows shows the keys in the location",
        "integration/spark/staging_location.py",
        '            "Then restart the query"\n        ) from redacted.cause(error)\n',
        '            "Then restart the query"\n        ) from error\n',
        "unit/test_spark_staging.py -k shows_a_key",
    ),
)
