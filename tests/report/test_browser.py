"""The page as a reader sees it, in a real browser: laptop and phone, light and dark."""

from __future__ import annotations

from dataclasses import replace

import browser as chromium
import pytest
from run_folders import CHAINED, FED3R, FEDAVG, FINETUNE, OWN, REAL, write_chains, write_exhibits, write_run

from hansa.results.report import build

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed (apt-get install chromium)")

LAPTOP, PHONE = (1366, 768), (390, 844)
EMPTY_CHARTS = """
[...document.querySelectorAll("svg.chart")].filter(svg => svg.checkVisibility()).filter(svg => {
  const box = svg.getBoundingClientRect();
  const marks = [...svg.querySelectorAll("path.line, rect.bar, .bubbles circle, circle.end")];
  const drawn = marks.filter(mark => { const b = mark.getBoundingClientRect(); return b.width + b.height > 1; });
  return box.width < 100 || box.height < 30 || !drawn.length;
}).map(svg => svg.getAttribute("aria-label"))
"""
COUNT = 'document.querySelectorAll("svg.chart").length'
OVERLAPS = """
[...document.querySelectorAll("svg.chart")].filter(svg => svg.checkVisibility()).flatMap(svg => {
  const texts = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
  return texts.flatMap(([a, p], i) => texts.slice(i + 1).filter(([b, q]) =>
    Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1 &&
    Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 4
  ).map(([b]) => `${a} / ${b}`));
})
"""
# Text of a scaled chart may leave its box only as far as the card's padding.
CLIPPED = """
[...document.querySelectorAll("figure svg.chart text")].filter(text => text.checkVisibility()).filter(text => {
  const box = text.getBoundingClientRect(), chart = text.closest("svg").getBoundingClientRect();
  return box.left < chart.left - 6 || box.right > chart.right + 6 || box.bottom > chart.bottom + 2;
}).map(text => text.textContent)
"""
SMALL = """
[...document.querySelectorAll("main *")].filter(e => e.checkVisibility()).filter(e => {
  const written = [...e.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  const scale = e.ownerSVGElement?.getScreenCTM().a ?? 1;
  return written && parseFloat(getComputedStyle(e).fontSize) * scale < 10;
}).map(e => e.textContent)
"""
# Where an element's middle is, once it has been scrolled to and the scrolling has been told to the page.
PLACE = """
(async selector => {
  const element = document.querySelector(selector);
  element.scrollIntoView({block: "center"});
  for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
  const box = element.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
})
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = chromium.Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory, three, many, killed):
    root = tmp_path_factory.mktemp("pages")
    names = [
        "a rather long name of a run that goes on and on and on",
        "WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW",
    ]
    long = [write_run(root / name[:5], name, (FED3R, FINETUNE), clients=12, classes=3) for name in names]
    own = write_exhibits(write_run(root / "own", "Fed3R + FP", (FED3R, OWN)))
    real = write_run(root / "real", "patients", (REAL,))
    folders = {"one": [three[2]], "three": three, "many": [many], "killed": [killed], "long": long, "own": [own]}
    folders["real"] = [real]
    folders["chains"] = [write_chains(write_run(root / "chains", "FedSeq", (CHAINED,)))]
    timed = write_chains(write_run(root / "timed", "FedSeq", (CHAINED,), classes=62), clock=True)
    lines = write_chains(write_run(root / "lines", "FedAsyncSeq", (FEDAVG,), clients=60), 20, 6, window=4, clock=True)
    folders["time"] = [timed, lines, three[0]]
    ends = [replace(FEDAVG, end=0.9 - 0.004 * place) for place in range(20)]
    folders["twenty"] = [write_run(root / f"{n}", f"run {n}", (end,), clients=4, seed=n) for n, end in enumerate(ends)]
    return {name: build(runs, root / f"{name}.html") for name, runs in folders.items()}


@pytest.mark.parametrize("name", ["one", "three", "twenty", "many", "killed", "long", "own", "real", "chains", "time"])
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_are_drawn_and_text_is_readable(browser, pages, name, size, scheme):
    browser.open(pages[name], *size, dark=scheme == "dark")
    assert browser.evaluate(COUNT) >= 8
    assert browser.evaluate(EMPTY_CHARTS) == []
    assert browser.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [size[0], size[0]]
    assert browser.evaluate(OVERLAPS) == []
    assert browser.evaluate(CLIPPED) == []
    assert browser.evaluate(SMALL) == []
    assert browser.complaints() == []
    assert {address.split(":")[0] for address in browser.requests()} <= {"file", "data"}


def test_a_frame_that_holds_more_than_it_shows_says_so_until_its_end_is_seen(browser, pages):
    shown = """[...document.querySelectorAll(".scroll.more")].map(e => getComputedStyle(e, "::before").content)"""
    browser.open(pages["three"], *LAPTOP)
    assert browser.evaluate(shown) == []
    browser.open(pages["three"], *PHONE)
    told = browser.evaluate(shown)
    assert told and all("Scroll sideways" in text for text in told)
    ends = "document.querySelectorAll('.scroll.more.end').length"
    assert browser.evaluate(ends) == 0
    browser.evaluate("document.querySelectorAll('.scroll.more').forEach(e => { e.scrollLeft = 9999; })")
    browser.evaluate("new Promise(done => setTimeout(done, 200))")
    assert browser.evaluate(ends) == len(told)


def test_dark_and_light_differ(browser, pages):
    shades = []
    for dark in (False, True):
        browser.open(pages["one"], *LAPTOP, dark=dark)
        shades.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert shades == ["rgb(246, 246, 243)", "rgb(20, 23, 27)"]


def test_switches_change_what_is_seen(browser, pages):
    browser.open(pages["three"], *LAPTOP)
    seen = "[...document.querySelectorAll('#curves svg.chart')].filter(s => s.checkVisibility()).map(s => s.ariaLabel)"
    first = browser.evaluate(seen)
    assert [label.split(".")[0] for label in first] == [
        "Test accuracy against rounds, linear axis",
        "Test accuracy against bytes, logarithmic axis",
        "Test accuracy against flops, logarithmic axis",
    ]
    browser.evaluate("document.getElementById('scale').click()")
    assert [label.split(".")[0].split(", ")[1] for label in browser.evaluate(seen)] == ["linear axis"] * 3
    assert browser.evaluate(OVERLAPS) == []
    for metric in browser.evaluate("[...document.querySelectorAll('input[name=metric]')].map(i => i.value)"):
        browser.evaluate(f"document.querySelector('input[value={metric}]').click()")
        assert len(browser.evaluate(seen)) == 3
        assert browser.evaluate(EMPTY_CHARTS) == []
        assert browser.evaluate(OVERLAPS) == []
    browser.evaluate("document.querySelector('.legend button').click()")
    dimmed = "new Set([...document.querySelectorAll('g.series.back')].map(g => g.dataset.run))"
    assert browser.evaluate(f"[...{dimmed}].sort()") == ["1", "2"]
    assert browser.complaints() == []


def test_pointing_at_a_curve_or_a_bubble_tells_its_numbers(browser, pages):
    browser.open(pages["three"], *LAPTOP)
    tip = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
    browser.move(*browser.evaluate(f"{PLACE}('#curves g[data-run=\"0\"] circle.end')"))
    assert browser.evaluate(tip).startswith("FedAvg from scratch: 85.")
    assert "from scratch, round 40" in browser.evaluate(tip)
    browser.move(*browser.evaluate(f"{PLACE}('.bubbles circle')"))
    assert "client-0000, class 0: " in browser.evaluate(tip)
    box = browser.evaluate("(b => [b.left, b.right])(document.getElementById('tip').getBoundingClientRect())")
    assert box[0] >= 0
    assert box[1] <= LAPTOP[0]
    browser.move(2, 2)
    assert browser.evaluate(tip) == ""


def test_what_a_phase_changed_can_be_read_and_pointed_at(browser, pages):
    browser.open(pages["own"], *PHONE)
    cards = "[...document.querySelectorAll('table.change')].map(t => t.closest('figure').firstChild.textContent)"
    assert browser.evaluate(cards) == ["closed form", "full personalisation"]
    heads = "[...document.querySelectorAll('table.change')].map(t => t.scrollWidth <= t.parentElement.clientWidth)"
    assert browser.evaluate(heads) == [True, True]  # a phone shows all four columns
    browser.open(pages["own"], *LAPTOP)
    tip = "document.getElementById('tip').textContent"
    browser.move(*browser.evaluate(f"{PLACE}('figure:has(table.change) g[data-name=after] circle.end')"))
    assert browser.evaluate(tip).startswith("after: 90 % of clients up to ")
    browser.move(*browser.evaluate(f"{PLACE}('g[data-name=\"other classes\"] circle.end')"))
    assert browser.evaluate(tip).startswith("other classes: 41.")
    assert "full personalisation, round 12" in browser.evaluate(tip)


def test_superclients_and_chains_can_be_pointed_at_and_scroll_in_their_frame_on_a_phone(browser, pages):
    tip = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
    browser.open(pages["time"], *LAPTOP)
    browser.move(*browser.evaluate(f"{PLACE}('.stay')"))
    assert " s to " in browser.evaluate(tip) and ", round 1: " in browser.evaluate(tip)
    browser.move(*browser.evaluate(f"{PLACE}('rect[data-tip^=superclient][fill-opacity]')"))
    assert ", of all clients " in browser.evaluate(tip)
    seen = "[...document.querySelectorAll('#curves svg.chart')].filter(s => s.checkVisibility()).map(s => s.ariaLabel)"
    against = [label for label in browser.evaluate(seen) if "against simulated time" in label]
    assert len(against) == 1 and "FedAsyncSeq ends at" in against[0] and "from scratch" not in against[0]
    browser.open(pages["time"], *PHONE)
    frame = "(f => [f.scrollWidth > f.clientWidth, f.clientWidth < innerWidth])"
    assert browser.evaluate(f"{frame}(document.querySelector('.scroll:has(.stay)'))") == [True, True]


def test_the_checks_above_can_fail(browser, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text(
        "<!doctype html><meta charset=utf-8><body><main style='width:3000px'><figure>"
        "<svg class=chart width=300 height=200><text y=50 x=9>one</text><text y=52 x=12 font-size=5>two</text>"
        "<text x=290 y=90>outside</text></svg></figure></main>"
        "<script>console.error('a'); fetch('http://127.0.0.1:9/x').catch(() => 0); undefinedFunction()</script>"
    )
    browser.open(broken, *LAPTOP)
    assert len(browser.evaluate(EMPTY_CHARTS)) == 1
    assert browser.evaluate("document.documentElement.scrollWidth") > LAPTOP[0]
    assert browser.evaluate(OVERLAPS) == ["one / two"]
    assert browser.evaluate(CLIPPED) == ["outside"]
    assert browser.evaluate(SMALL) == ["two"]
    assert len(browser.complaints()) >= 2
    assert any(address.startswith("http:") for address in browser.requests())


def test_a_ranking_is_sorted_by_what_is_pressed(browser, tmp_path) -> None:
    ends = (0.6, 0.9, 0.7, 0.5, 0.8, 0.65, 0.75)
    folders = [
        write_run(tmp_path / str(k), f"run {k}", [replace(FEDAVG, end=end, rounds=2 + k)]) for k, end in enumerate(ends)
    ]
    build(folders, tmp_path / "page.html")
    browser.open(tmp_path / "page.html", *PHONE)
    read = '[...document.querySelectorAll("table.ranking tbody th")].map(th => th.textContent).join()'
    press = "[...document.querySelectorAll('table.ranking thead button')][{}].click()"
    assert browser.evaluate(read).startswith("run 1,run 4")
    browser.evaluate(press.format(2))  # rounds, the most first
    assert browser.evaluate(read) == ",".join(f"run {k}" for k in reversed(range(7)))
    browser.evaluate(press.format(2))
    assert browser.evaluate(read) == ",".join(f"run {k}" for k in range(7))
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth") is True
    assert browser.complaints() == []


def test_a_name_stays_in_sight_while_its_row_is_scrolled(browser, pages):
    browser.open(pages["three"], *PHONE)
    scrolled = """[...document.querySelectorAll(".scroll.more:has(table.named)")].map(frame => {
      frame.scrollLeft = 60;
      const name = frame.querySelector("tbody th").getBoundingClientRect();
      return name.left >= frame.getBoundingClientRect().left && frame.scrollLeft > 0;
    })"""
    found = browser.evaluate(scrolled)
    assert found and all(found)
