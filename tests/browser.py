"""A headless Chromium, driven through its DevTools protocol over a pipe: it needs no driver and no port."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
#: The browser reads commands from file descriptor 3 and responds on descriptor 4.
_START: Final = (
    "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)
#: A browser that has not responded for this long is broken, even on a busy machine.
_PATIENCE_S: Final = 60


def executable() -> str | None:
    """This machine's browser; None if no browser is installed."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


@dataclass
class Tab:
    """One page. ``requests`` are its requests to the network; ``problems`` are the messages on its console."""

    commands: int
    answers: int
    session: str = ""
    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _number: int = 0
    _rest: bytes = b""
    _loaded: bool = False

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command, and wait for its response."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while (found := self._next()).get("id") != self._number:
            self._note(found)
        assert "error" not in found, found
        result: dict[str, Any] = found["result"]
        return result

    def open(self, page: Path, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Show a file in a window of this size, in the ``light`` or the ``dark`` scheme."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.requests, self.problems, self._loaded = [], [], False
        self.ask("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._note(self._next())

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, *, is_whole: bool = True) -> bytes:
        """A PNG of the page, or of its visible part."""
        found = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        return base64.b64decode(found["data"])

    def _note(self, message: dict[str, Any]) -> None:
        method, about = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif method in {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}:
            self.problems.append(json.dumps(about))
        elif method == "Page.loadEventFired":
            self._loaded = True

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._rest:
            readable, _, _ = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self.answers, 1 << 20) if readable else b""
            assert data, "the browser ended or did not respond"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found


@contextlib.contextmanager
def browser(program: str) -> Iterator[Tab]:
    """Yield a browser with one tab, and end it afterwards."""
    (to_read, commands), (answers, to_write) = os.pipe(), os.pipe()
    given = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (to_read, to_write)]  # descriptors 3 and 4 may be in use
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, contextlib.ExitStack() as ends:
        start = [
            sys.executable,
            "-c",
            _START,
            *map(str, given),
            program,
            *_FLAGS,
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        process = subprocess.Popen(start, pass_fds=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ends.callback(process.wait)
        ends.callback(process.kill)
        for one in (to_read, to_write, *given):
            os.close(one)
        ends.callback(os.close, commands)
        ends.callback(os.close, answers)
        tab = Tab(commands, answers)
        target = tab.ask("Target.createTarget", url="about:blank")["targetId"]
        tab.session = tab.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.ask(f"{domain}.enable")
        yield tab
