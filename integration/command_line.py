"""Declare the options that several ``twopc`` commands share. This module imports nothing that ``--help`` does not need."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

_LARGEST_SEED: Final = 999_999

connection = partial(typer.Option, rich_help_panel="Connection")

Servers = Annotated[str, connection(help="A broker's host:port. Separate several brokers with commas.")]
Config = Annotated[
    list[str] | None, connection("--config", "--option", help="A librdkafka option, key=value. Repeatable.")
]
ConfigFile = Annotated[
    Path | None,
    connection(exists=True, dir_okay=False, help="A file of librdkafka options, one per line. Put passwords there."),
]
Timeout = Annotated[int, connection(min=1, help="How many seconds to wait for the brokers.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, and everything else to stderr.")]
Seed = Annotated[
    int | None, typer.Option(min=0, help="The seed of an earlier run, to repeat its kills. Default: random.")
]


def chosen_seed(seed: int | None) -> int:
    """Return the seed. If the seed is None, return a random seed that is short enough to type."""
    return random.randint(0, _LARGEST_SEED) if seed is None else seed  # noqa: S311 - chaos, not cryptography
