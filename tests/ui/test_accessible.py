"""Each view, wide and narrow, light and dark, by keyboard, and as people see it who tell no colours apart."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.admin.command import Command, until
from tests.ui.browsing import PATIENCE, count, element, sees, text_of
from tests.ui.conftest import TOKEN, serving
from tests.ui.stage import ALONE, BUSY, FAILED, QUERY, STOPPED, staged

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

GROUP, HALTED = (f"group/{quote(one, safe='')}" for one in (BUSY, STOPPED))
VIEWS: dict[str, tuple[str, ...]] = {
    "": (STOPPED, "is stopped at a message", ALONE, "40 messages wait", "report failed", "query 0000"),
    "groups": (BUSY, STOPPED, ALONE, "consuming", "stopped", "no leader"),
    GROUP: ("held by 3 consumers", "ana: ", "flights.0.3", "term: embedded-"),
    f"{GROUP}?tab=heat": ("Lag by stream over time",),
    f"{GROUP}?tab=why": ("Why streams wait", "flights.0.3", "granted", "Silent for"),
    HALTED: ("1 stream stopped at a message that failed: flights.0.", "failure: offset 0"),
    f"{HALTED}?tab=letters": ("ValueError: no number", "flight "),
    "spaces": ("flights", "trips", "clicks", "history"),
    "space/trips": ("Groups that read it", ALONE, "minutes int64", "keeps everything"),
    "space/flights?tab=messages": ("flights/3/in", "of now"),
    "space/flights?tab=messages&m=flights.0.0@1": ("Event time", "next →"),
    "space/trips?tab=messages": ("Genève", "car-2", "39"),
    "space/flights?tab=topics": ("flights/6/in",),
    "space/flights?tab=streams": ("flights.0.3", "open"),
    "space/clicks?tab=epochs": ("ingest", "Lower frontier"),
    "space/history?tab=archive": ("Not archived yet", ".parquet", "100 %"),
    "queries": ("delays", "report", "worker 0 exited with 3", "box1", "1 / 4", "zone=a"),
    f"query/{QUERY}": ("reads flights/#", "WARN one partition", "box1", "7001", "flights/3/in", "4906"),
    f"query/{FAILED}": ("failed", "worker 0 exited with 3", "submitted by ben"),
    "hosts": ("host-a", "alive", "host-b", "drained", "4905"),
    "services": ("scorer", "Score"),
    "catalog/borrowers": (BUSY, "ana"),
}
"""What each view shows: so it is known that it is there, and none is looked at that is empty."""

JUDGE = (Path(__file__).parent / "judge.js").read_text()
"""What is wrong in a view: see there."""


@pytest.fixture
def emulated(browser: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.execute_cdp_cmd("Emulation.setEmulatedVisionDeficiency", {"type": "none"})


def resize(browser: webdriver.Chrome, width: int) -> None:
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 800}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    until(lambda: browser.execute_script("return innerWidth") == width, PATIENCE)


def choose_scheme(browser: webdriver.Chrome, scheme: str) -> None:
    wanted = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})


def test_each_view_can_be_read_and_reached_by_everybody(
    embedded_redis_url: str, emulated: webdriver.Chrome, tmp_path: Path, token_file: Path
) -> None:
    browser, command = emulated, Command(tmp_path, embedded_redis_url)
    words = ("--token-file", str(token_file))
    with staged(embedded_redis_url, str(tmp_path / "archive")), serving(command, *words) as site:
        browser.get(site.url)
        sees(browser, "#state", "live")
        login = """const done = arguments[1]; fetch("/api/login", { method: "POST", body: arguments[0],
            headers: { "Content-Type": "application/json" } }).then((answer) => done(answer.status))"""
        assert browser.execute_async_script(login, f'{{"token": "{TOKEN}"}}') == 200
        browser.refresh()
        wrong = []
        for view, texts in VIEWS.items():
            browser.get(f"{site.url}/#/{view}")
            sees(browser, "main", *texts)
            for width, scheme in itertools.product((1440, 390), ("light", "dark")):
                resize(browser, width)
                choose_scheme(browser, scheme)
                wrong += [
                    (view, width, scheme, one) for one in browser.execute_script(f"{JUDGE} return judge()")
                ]
        assert wrong == []
        resize(browser, 1440)
        pictures_by_keyboard(browser, site.url)
        owners_without_colours(browser, site.url)


def pictures_by_keyboard(browser: webdriver.Chrome, url: str) -> None:
    """What a mouse can point at, arrow keys can."""
    browser.get(f"{url}/#/{GROUP}")
    sees(browser, "#owners", "ana: ", "ben: ", "cleo: ")
    before = "main figure .picture canvas"
    element(browser, ".tabs a").send_keys(Keys.SHIFT, Keys.TAB)
    assert browser.execute_script("return document.activeElement.matches(arguments[0])", before)
    sees(browser, "#pointed", "flights.0.0: ")
    element(browser, before).send_keys(Keys.ARROW_RIGHT)
    sees(browser, "#pointed", "flights.0.1: ")
    element(browser, before).send_keys(Keys.END)
    sees(browser, "#pointed", "flights.0.3: ")
    assert count(browser, ".picture .cursor") == 1
    chart = element(browser, "main .chart")
    until(lambda: count(browser, ".chart canvas") == 1, PATIENCE)
    chart.send_keys(Keys.HOME)
    until(lambda: text_of(browser, "figure:has(.chart) output").count(":") == 3, PATIENCE)
    assert text_of(browser, "#pointed") == "", "it is told of one picture at a time"
    browser.get(f"{url}/#/{HALTED}?tab=heat")
    sees(browser, "#heat", "worst first")
    until(lambda: count(browser, "#heat canvas") == 1, PATIENCE)
    heat = element(browser, "#heat canvas")
    heat.send_keys(Keys.ARROW_DOWN, Keys.END)
    sees(browser, "#heat output", "flights.0.", " at ")


def owners_without_colours(browser: webdriver.Chrome, url: str) -> None:
    """The marks of owners differ by more than their hue, to everybody."""
    browser.get(f"{url}/#/{GROUP}")
    sees(browser, "#owners", "ana: ", "ben: ", "cleo: ")
    boxes = """return [...document.querySelectorAll("#owners canvas")].map((one) => {
        const box = one.getBoundingClientRect(); return [box.x, box.y, box.width, box.height] })"""
    places = browser.execute_script(boxes)
    pictures = {}
    for kind in ("achromatopsia", "deuteranopia", "protanopia", "tritanopia"):
        browser.execute_cdp_cmd("Emulation.setEmulatedVisionDeficiency", {"type": kind})
        for place, (x, y, width, height) in enumerate(places):
            clip = {"x": x, "y": y, "width": width, "height": height, "scale": 4}
            shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": clip})
            pictures[kind, place] = shot["data"]
    browser.get("about:blank")
    read = """const [all, done] = arguments; Promise.all(all.map(async (data) => {
        const shown = new Image(); shown.src = "data:image/png;base64," + data; await shown.decode();
        const drawn = Object.assign(document.createElement("canvas"), { width: 52, height: 52 });
        const context = drawn.getContext("2d"); context.drawImage(shown, 0, 0, 52, 52);
        return [...context.getImageData(0, 0, 52, 52).data].filter((_, n) => n % 4 < 3); })).then(done)"""
    assert all(base64.b64decode(one).startswith(b"\x89PNG") for one in pictures.values())
    pixels = dict(zip(pictures, browser.execute_async_script(read, [*pictures.values()]), strict=True))
    for kind in {kind for kind, _ in pixels}:
        for one, other in itertools.combinations(range(len(places)), 2):
            pairs = zip(pixels[kind, one], pixels[kind, other], strict=True)
            differing = sum(abs(a - b) > 32 for a, b in pairs) / len(pixels[kind, one])
            assert differing > 0.05, (kind, one, other, differing)
