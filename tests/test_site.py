"""The documentation builds as a site with valid links, and its API page shows every public name."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
#: Documents that name files of the repository.
_DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/protocol.md", "docs/deployment.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=_ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.mark.parametrize(
    "package",
    [
        "twopc",
        "twopc.sinks.kafka",
        "twopc.sinks.redis",
        "twopc.sinks.hbase",
        "twopc.integration.spark",
        "twopc.integration.history",
        "twopc.integration.alerts",
        "twopc.integration.migrate",
        "twopc.integration.operate",
    ],
)
def test_the_api_page_shows_every_public_name(site: Path, package: str) -> None:
    page = (site / "api" / "index.html").read_text()
    shown = {found.rpartition(".")[2] for found in re.findall(r'id="([\w.]+)"', page)}
    module = importlib.import_module(package)
    assert {name for name in module.__all__ if callable(getattr(module, name))} - shown == set()


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_every_file_mentioned_in_a_document_exists(document: str) -> None:
    text = (_ROOT / document).read_text()
    named = re.findall(
        r"`((?:twopc|sinks|integration|tests|docs|examples|benchmarks)/[\w/.*-]*\w(?:\.py|\.md|/))`", text
    )
    linked = re.findall(r"\]\(((?!http)[^)#]+)\)", text) if document == "README.md" else []
    assert [path for path in (*named, *linked) if not list(_ROOT.glob(path.rstrip("/")))] == []
