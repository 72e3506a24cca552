"""Run an operator's commands in this process, on a query without Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from typer.testing import CliRunner

from twopc.integration.cli import app

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.rules.schedules import Play


class Said(NamedTuple):
    """The output of a command, and its exit status."""

    status: int
    out: str
    error: str

    @property
    def facts(self) -> Any:
        return json.loads(self.out)


def command(*words: str, answer: str | None = None) -> Said:
    done = CliRunner().invoke(app, list(words), input=answer)
    assert "Traceback" not in done.output, done.output
    return Said(done.exit_code, done.stdout, done.stderr)


def ask(play: Play, *words: str, answer: str | None = None) -> Said:
    """A command about the play's sink. The words before ``--`` come before the sink's name."""
    return command(*words, "--bootstrap-servers", play.bootstrap_servers, "--timeout", "20", answer=answer)


def spark_files(play: Play, *, finished: int, planned: int | None = None) -> Path:
    """Write the files that Spark would have left in the play's checkpoint; return its path."""
    play.root.mkdir(exist_ok=True)
    (play.root / "metadata").write_text(json.dumps({"id": play.query_id}))
    for directory, last in (("offsets", finished if planned is None else planned), ("commits", finished)):
        for batch in range(last + 1):
            spark_file(play, directory, batch)
    return play.root


def spark_file(play: Play, directory: str, batch: int) -> None:
    (play.root / directory).mkdir(exist_ok=True)
    (play.root / directory / str(batch)).write_text(f'v1\n{{}}\n{{"in":{{"0":{batch}}}}}')
