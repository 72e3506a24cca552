"""The command line as a whole: completion as a shell asks for it, and the exit statuses that the documents promise."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from twopc.integration.cli import app

if TYPE_CHECKING:
    from collections.abc import Iterator

_DOCS: Final = Path(__file__).parents[2] / "docs"
_COMPLETED: Final = [
    ("sav", ["savepoint"]),
    ("transactions ", ["abort", "commit", "list", "prove"]),
    ("savepoint re", ["restore"]),
    ("status --che", ["--checkpoint"]),
    ("history --f", ["--failed"]),
]
#: Stand-ins for the parts of each shell that the completion functions use.
_BASH: Final = 'complete() { :; }; source /dev/stdin; COMP_WORDS=(${LINE}); [[ "$LINE" = *" " ]] && COMP_WORDS+=(""); \
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _twopc_completion twopc; printf "%s\\n" "${COMPREPLY[@]}"'
_ZSH: Final = 'compdef() { : }; _arguments() { print -r -- "$@" }; _files() { print -r FILES }; source /dev/stdin; \
words=(${(s: :)LINE}); [[ "$LINE" = *" " ]] && words+=(""); CURRENT=${#words}; _twopc_completion'


def _twopc(*words: str, **environment: str) -> str:
    """The output of the installed command."""
    command = [str(Path(sys.executable).parent / "twopc"), *words]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def _in_shell(shell: str, script: str, line: str) -> str:
    """The response of the shell's own completion function to a line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed, so its completion function cannot be tested")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", script],
        input=_twopc(_TWOPC_COMPLETE=f"source_{shell}"),
        env=os.environ | {"PATH": path, "LINE": f"twopc {line}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def _of_zsh(said: str) -> list[str]:
    """The words that ``_arguments`` receives, without their explanations."""
    return sorted(re.findall(r'(?:\(\(|\s)"([\w-]+)":"', said))


@pytest.mark.parametrize(("line", "expected"), _COMPLETED)
def test_bash_completes_command_lines(line: str, expected: list[str]) -> None:
    assert sorted(_in_shell("bash", _BASH, line).split()) == expected


@pytest.mark.parametrize(("line", "expected"), _COMPLETED[:3])
def test_zsh_completes_command_lines(line: str, expected: list[str]) -> None:
    assert _of_zsh(_in_shell("zsh", _ZSH, line)) == expected


@pytest.mark.parametrize(("line", "expected"), _COMPLETED[:3])
def test_the_command_that_zshs_function_calls_completes_command_lines(line: str, expected: list[str]) -> None:
    said = _twopc(_TWOPC_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=f"twopc {line}")
    assert _of_zsh(said) == expected


def test_a_path_is_left_to_the_shell() -> None:
    assert _twopc(_TWOPC_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="twopc status /t").strip() == "_files"


# -- exit status -------------------------------------------------------------------------------------------------------


def _leaves(command: Any, *names: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(names), command
        return
    for name, one in command.commands.items():
        yield from _leaves(one, *names, name)


_COMMANDS: Final = dict(_leaves(get_command(app)))


def _table() -> dict[str, dict[int, str]]:
    """The meaning of each command's exit statuses, from the table of the page on the command line."""
    lines = (_DOCS / "command-line.md").read_text().partition("## Exit status")[2].splitlines()
    _, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {name: dict(enumerate(cells)) for names, *cells in rows for name in re.findall(r"`([\w -]+)`", names)}


def test_the_table_lists_every_command_and_each_exit_status_in_its_help() -> None:
    said = {name: {status for status, text in cells.items() if text} for name, cells in _table().items()}
    helped = {}
    for name, command in _COMMANDS.items():
        promise = (command.callback.__doc__ or "").partition("Exit status")[2]
        helped[name] = {int(status) for status in re.findall(r"(?:^|[:,;]|finding:) ([0-3]) ", f":{promise}")}
    assert said == helped


@pytest.mark.parametrize("name", _COMMANDS)
def test_a_usage_error_exits_with_2_and_help_exits_with_0(name: str) -> None:
    assert CliRunner().invoke(app, [*name.split(), "--no-such-option"]).exit_code == 2
    assert CliRunner().invoke(app, [*name.split(), "--help"]).exit_code == 0


@pytest.mark.parametrize("name", [name for name, cells in _table().items() if cells[2]])
def test_a_command_that_cannot_check_its_target_exits_with_2(name: str, tmp_path: Path) -> None:
    """The names belong to nothing: neither a directory nor an option."""
    words = name.split()
    for parameter in _COMMANDS[name].params:
        if not parameter.required:
            continue
        value = "0" if parameter.name == "batch" else str(tmp_path / "none")
        words += [parameter.opts[0], value] if parameter.param_type_name == "option" else [value]
    options = {option for parameter in _COMMANDS[name].params for option in parameter.opts}
    wrong = next((option for option in ("--config", "--option") if option in options), None)
    if wrong is not None:
        words += [wrong, "nonsense"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
