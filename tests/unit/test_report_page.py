"""The page of ``twopc report`` in a real browser, if this machine has one; and the checks of the page that need no browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.browser import browser, executable
from tests.unit.history_support import T0, ended, failed, write
from twopc.integration.history.diagnose import diagnose
from twopc.integration.history.reader import read
from twopc.integration.history.report import page
from twopc.integration.operate.advice import advise
from twopc.integration.operate.held import HeldPartition
from twopc.integration.operate.observe import SinkState
from twopc.integration.operate.opened import OpenTransaction, Standing
from twopc.integration.operate.report import sinks_section

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.browser import Tab

#: The contrast ratios that WCAG level AA requires for text and for graphics.
_TEXT: Final = 4.5
_DRAWN: Final = 3.0
_LONG: Final = "s3:" + "a_path_without_any_space_" * 12
#: The contrast of each text and each bar with its background, the lowest first.
_CONTRASTS: Final = """(() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = text => { const [r, g, b] = rgb(text).map(v => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b };
  const ratio = (one, other) => { const [a, b] = [light(one), light(other)].sort((x, y) => y - x); return (a + .05) / (b + .05) };
  const behind = element => { for (let one = element; one; one = one.parentElement) {
    const color = getComputedStyle(one).backgroundColor; if (rgb(color)[3] !== 0) return color } };
  const texts = {}, drawn = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = walker.nextNode();) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest('title, style')) continue;
    const color = getComputedStyle(element)[element.closest('svg') ? 'fill' : 'color'];
    const key = color + ' on ' + behind(element); texts[key] = ratio(color, behind(element)) }
  for (const one of document.querySelectorAll('rect, polygon, circle')) {
    const color = getComputedStyle(one).fill; drawn[color] = ratio(color, behind(one.parentElement)) }
  return {texts, drawn} })()"""
#: Texts in a drawing that touch each other, stick out of the drawing, or are too small.
_CLASHES: Final = """(() => [...document.querySelectorAll('svg')].flatMap(svg => {
  const texts = [...svg.querySelectorAll('text')].map(one => [one.textContent, one.getBoundingClientRect()]);
  const frame = svg.getBoundingClientRect();
  const out = texts.filter(([_, box]) => box.left < frame.left - 1 || box.right > frame.right + 1)
    .map(([text]) => text + ' is cut');
  const touch = texts.flatMap(([one, a], at) => texts.slice(at + 1).filter(([_, b]) => a.left < b.right && b.left < a.right
    && a.top < b.bottom && b.top < a.bottom).map(([other]) => one + ' touches ' + other));
  const small = texts.filter(([_, box]) => box.height < 9).map(([text]) => text + ' is too small to read');
  return [...out, ...touch, ...small] }))()"""


def checkpoints(count: int) -> Iterator[Any]:
    """A history with everything that a page can show."""
    for number in range(count):
        is_direct = (number // 20) % 3 == 1
        changed: dict[str, Any] = {"way": "direct", "phases": {"prepare": 250.0, "commit": 30.0, "evaluate": 120.0}}
        slow = {"took_ms": 3_000.0, "phases": {"recover": 900.0, "prepare": 2_000.0, "finish": 100.0}}
        if number % 7 == 2:
            yield failed(number, "BadRecordError", f"row {_LONG}\nand a second line", "declined")
        if number % 50 == 40:
            long = {"took_ms": 600_000.0, "phases": {"prepare": 600_000.0}}
            yield failed(number, "CheckpointExpiredError", "too slow", "expired", **long)
        yield ended(number, **(slow if number % 25 == 24 else changed if is_direct else {}))


def sink(name: str, transactions: int = 0, **changed: Any) -> SinkState:
    found = tuple(
        OpenTransaction(
            transactional_id=f"{name}.00000000000000000004.{task}.0", producer_id=100 + task, producer_epoch=0,
            state="Ongoing", standing=Standing.DECIDED, age_s=12.0, expires_in_s=888.0, batch=41, task=task, rows=10_000,
        )
        for task in range(transactions)
    )  # fmt: skip
    held = tuple(
        HeldPartition("out", task, 1_000, 11_000, 100 + task, found[task].transactional_id)
        for task in range(transactions)
    )
    facts = {"driver": "host:1", "driver_epoch": 4, "last_decided": 41, "last_committed": 41, **changed}
    return SinkState(sink=name, ledger=f"twopc-ledger-{name}", transactions=found, held=held, **facts)


SINKS: Final = (
    sink("orders-enriched-by-customer-and-product-in-all-of-europe", 3, last_committed=40),
    sink("audit"),
    sink("lost", problem="topic twopc-ledger-lost does not exist on this cluster"),
)


@pytest.fixture(scope="module", params=[1, 3, 100, 1000])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A page, and the number of its checkpoints."""
    directory = tmp_path_factory.mktemp("page")
    lines = list(checkpoints(request.param))
    history = read(write(directory / "checkpoint", lines))
    section = sinks_section([(one, advise(one)) for one in SINKS], T0)
    (directory / "page.html").write_text(page(history, diagnose(history), section, last=10_000), encoding="utf-8")
    return directory / "page.html", len(lines)


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    program = executable()
    if program is None:
        pytest.skip("neither Chromium nor Chrome is installed, so only the page's text is checked")
    with browser(program) as found:
        yield found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 320])
def test_a_browser_shows_everything_and_makes_no_request(
    tab: Tab, written: tuple[Path, int], tmp_path: Path, width: int, scheme: str
) -> None:
    file, count = written
    tab.open(file, width=width, scheme=scheme)
    assert tab.problems == []
    assert tab.requests == [file.as_uri()]
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run("document.querySelectorAll('#checkpoints tbody tr').length") == count
    assert tab.run("document.querySelectorAll('#timeline svg g').length") == count
    assert tab.run(_CLASHES) == []
    (tmp_path / f"{scheme}.png").write_bytes(picture := tab.picture(is_whole=False))
    assert picture.startswith(b"\x89PNG")
    found = tab.run(_CONTRASTS)
    assert len(found["texts"]) >= 5 and len(found["drawn"]) > 3
    assert {pair: ratio for pair, ratio in found["texts"].items() if ratio < _TEXT} == {}
    assert {color: ratio for color, ratio in found["drawn"].items() if ratio < _DRAWN} == {}


def test_the_two_color_schemes_differ(tab: Tab, written: tuple[Path, int]) -> None:
    seen = set()
    for scheme in ("light", "dark"):
        tab.open(written[0], width=800, scheme=scheme)
        seen.add(tab.run("getComputedStyle(document.body).backgroundColor"))
    assert seen == {"rgb(255, 255, 255)", "rgb(13, 17, 23)"}


# -- without a browser -------------------------------------------------------------------------------------------------


class _Reader(HTMLParser):
    """Elements by their names, with their attributes; and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_contains_every_checkpoint_and_loads_nothing(written: tuple[Path, int]) -> None:
    file, count = written
    reader = _Reader()
    reader.feed(file.read_text(encoding="utf-8"))
    tags = [tag for tag, _ in reader.found]
    assert not {"script", "link", "img", "iframe", "object"} & set(tags)
    assert not [tag for tag, attributes in reader.found if {"src", "href", "onload", "onclick"} & attributes.keys()]
    [policy] = [str(one["content"]) for tag, one in reader.found if tag == "meta" and "http-equiv" in one]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert tags.count("g") == count
    table = file.read_text(encoding="utf-8").partition('id="checkpoints"')[2]
    assert table.count("<tr>") == count + 1
    for said in (
        "3open transactions",
        "30,000lag of the last stable offset",
        "888 suntil the first expires",
        "out[2]",
        "11,000",
    ):
        assert said in reader.text
    assert "lag of" not in reader.text.partition("Sink lost")[2].partition("Timeline")[0]


def _lightness(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    dark, light = sorted((_lightness(one), _lightness(other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_colors_of_both_schemes_are_readable(written: tuple[Path, int]) -> None:
    schemes = re.findall(r":root \{(.*?)\}", written[0].read_text(encoding="utf-8"), re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", scheme))
        texts = ("text", "dim", "bad", "watch")
        weak = [(one, on) for one in texts for on in ("page", "card") if _contrast(colors[one], colors[on]) < _TEXT]
        weak += [
            (one, "page")
            for one in colors.keys() - {"page", "card", "line"}
            if _contrast(colors[one], colors["page"]) < _DRAWN
        ]
        assert not weak
