"""The pytest plugin: the fixtures ``kill_loop`` and ``crash_points``, and options that reproduce a kill loop.

The plugin does not import Spark or any client until a test uses a fixture.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

    from twopc.testing.kill_loop import Outcome

# With this call, pytest explains a failed assertion in the suite as it does in a test module.
pytest.register_assert_rewrite("twopc.testing.contract")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the ``kill_loop`` fixture."""
    group = parser.getgroup("twopc", "twopc.testing")
    group.addoption("--twopc-seed", type=int, metavar="N", help="the seed of kill_loop's kills; default: random")
    group.addoption(
        "--twopc-kills",
        type=int,
        metavar="N",
        help="how many times kill_loop kills the query; default: the number that the test passes",
    )
    group.addoption(
        "--twopc-connect", action="store_const", const=True, help="run the queries in kill_loop under Spark Connect"
    )


@pytest.fixture
def crash_points() -> Iterator[ModuleType]:
    """Yield the module :mod:`twopc.testing.crash_points`, and disarm every point after the test."""
    from twopc.testing import crash_points as module  # noqa: PLC0415 - see the module's docstring

    module.disarm()
    yield module
    module.disarm()


@pytest.fixture
def kill_loop(
    request: pytest.FixtureRequest, tmp_path: Path, record_property: Callable[[str, object], None]
) -> Callable[..., Outcome]:
    """Return :func:`twopc.testing.kill_loop.kill_loop`, bound to this test's directory and the command-line options."""
    from twopc.testing.kill_loop import kill_loop as loop  # noqa: PLC0415 - see the module's docstring

    options = {name: request.config.getoption(f"twopc_{name}") for name in ("seed", "kills", "connect")}
    chosen = {name: value for name, value in options.items() if value is not None}

    @functools.wraps(loop)
    def run(*arguments: Any, **settings: Any) -> Outcome:
        outcome = loop(*arguments, **{"directory": tmp_path / "kill_loop", **settings, **chosen})
        record_property("twopc_kill_loop", str(outcome))
        print(f"kill_loop: {outcome}")  # noqa: T201 - pytest shows it if the test fails
        return outcome

    return run
