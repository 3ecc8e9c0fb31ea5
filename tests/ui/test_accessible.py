"""Each view, wide and narrow, light and dark, by keyboard, and as people see it who tell no colours apart."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from streamlease.admin.ui.other_acts import roles
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

DIALOGS = {
    GROUP: "held by 3 consumers", HALTED: "1 stream stopped", f"{HALTED}?tab=letters": "ValueError",
    "space/trips": "Groups that read it", "space/clicks?tab=epochs": "ingest", "hosts": "host-b",
    f"query/{QUERY}": "reads flights/#",
}  # fmt: skip
"""Where each act's dialog is opened, and what is seen then."""

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
            wrong += judged(browser, view)
        assert wrong == []
        dialogs_for_everybody(browser, site.url)
        resize(browser, 1440)
        choose_scheme(browser, "light")
        pictures_by_keyboard(browser, site.url)
        owners_without_colours(browser, site.url)
        heat_and_curves_without_colours(browser, site.url)
        states_without_colours(browser, site.url)


def test_a_login_can_be_read_and_reached_by_everybody(
    emulated: webdriver.Chrome, command: Command, tmp_path: Path
) -> None:
    browser = emulated
    tokens = [{"name": "ana", "sha256": sha256(b"token-ana").hexdigest(), "role": "observer"}]
    (tmp_path / "tokens").write_text(json.dumps({"tokens": tokens}))
    with serving(command, "--token-file", str(tmp_path / "tokens")) as site:
        browser.get(site.url)
        sees(browser, ".login", "Token")
        assert judged(browser, "login") == []
        browser.switch_to.active_element.send_keys("wrong-token-that-is-long", Keys.ENTER)
        sees(browser, ".login", "missing or wrong")
        assert judged(browser, "login refused") == []
        field = browser.switch_to.active_element
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys("token-ana", Keys.TAB, Keys.ENTER)
        sees(browser, "#who", "ana · observer")


def judged(browser: webdriver.Chrome, view: str) -> list[tuple[str, int, str, str]]:
    """What is wrong in the view that is shown, wide and narrow, light and dark."""
    wrong = []
    for width, scheme in itertools.product((1440, 390), ("light", "dark")):
        resize(browser, width)
        choose_scheme(browser, scheme)
        wrong += [(view, width, scheme, one) for one in browser.execute_script(f"{JUDGE} return judge()")]
    return wrong


def dialogs_for_everybody(browser: webdriver.Chrome, url: str) -> None:
    """Each act's dialog, opened by keyboard, with an answer in it where one can be had without a field."""
    left, wrong = {*roles()}, []
    for view, ready in DIALOGS.items():
        browser.get(f"{url}/#/{view}")
        sees(browser, "main", ready)
        resize(browser, 1440)
        until(lambda: count(browser, "main [data-act]") > 0, PATIENCE)
        names = """return [...new Set([...document.querySelectorAll("main [data-act]")]
            .map((one) => one.dataset.act))]"""
        for name in sorted(left & {*browser.execute_script(names)}):
            left.remove(name)
            element(browser, f"main [data-act={name}]").send_keys(Keys.ENTER)
            sees(browser, "#act h2", ":")
            until(lambda: browser.execute_script(INSIDE), PATIENCE)
            element(browser, "#act [data-do=show]").send_keys(Keys.ENTER)
            until(lambda: text_of(browser, "#act .answer") not in ("", "…"), PATIENCE)
            wrong += judged(browser, f"{view} {name}")
            browser.switch_to.active_element.send_keys(Keys.ESCAPE)
            until(lambda: count(browser, "dialog[open]") == 0, PATIENCE)
    assert (wrong, left) == ([], set())


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
    until(lambda: count(browser, "#heat canvas:not(.unknown)") == 1, PATIENCE)
    heat = element(browser, "#heat canvas")
    heat.send_keys(Keys.ARROW_DOWN, Keys.END)
    sees(browser, "#heat output", "flights.0.", " at ")


INSIDE = "return document.querySelector('#act[open]')?.contains(document.activeElement)"
"""Whether the keyboard is in the dialog."""

KINDS = ("achromatopsia", "deuteranopia", "protanopia", "tritanopia")
SIDE = 52
Box = tuple[float, float, float, float]


def seen_in(browser: webdriver.Chrome, boxes: list[Box]) -> dict[tuple[str, int], list[int]]:
    """The pixels of boxes of the page, `SIDE` by `SIDE`, as people see them who tell few colours apart."""
    pictures = {}
    for kind in KINDS:
        browser.execute_cdp_cmd("Emulation.setEmulatedVisionDeficiency", {"type": kind})
        for place, (x, y, width, height) in enumerate(boxes):
            clip = {"x": x, "y": y, "width": width, "height": height, "scale": SIDE / width}
            shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": clip})
            pictures[kind, place] = shot["data"]
    browser.execute_cdp_cmd("Emulation.setEmulatedVisionDeficiency", {"type": "none"})
    browser.get("about:blank")  # the page's policy lets no picture in
    read = """const [all, side, done] = arguments; Promise.all(all.map(async (data) => {
        const shown = new Image(); shown.src = "data:image/png;base64," + data; await shown.decode();
        const drawn = Object.assign(document.createElement("canvas"), { width: side, height: side });
        const context = drawn.getContext("2d"); context.drawImage(shown, 0, 0, side, side);
        return [...context.getImageData(0, 0, side, side).data].filter((_, n) => n % 4 < 3); })).then(done)"""
    assert all(base64.b64decode(one).startswith(b"\x89PNG") for one in pictures.values())
    read_all = browser.execute_async_script(read, [*pictures.values()], SIDE)
    return dict(zip(pictures, read_all, strict=True))


def luminances(pixels: list[int]) -> list[float]:
    """That of each pixel, as WCAG reckons it."""
    linear = [one / 255 / 12.92 if one <= 10 else ((one / 255 + 0.055) / 1.055) ** 2.4 for one in pixels]
    rows = zip(linear[::3], linear[1::3], linear[2::3], strict=True)
    return [0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in rows]


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def heat_and_curves_without_colours(browser: webdriver.Chrome, url: str) -> None:
    """More lag is darker on light ground and lighter on dark ground, to everybody; a curve stands out."""
    for scheme in ("light", "dark"):
        choose_scheme(browser, scheme)
        browser.get(f"{url}/#/{HALTED}?tab=heat")
        until(lambda: count(browser, "#heat .scale span") == 7, PATIENCE)
        until(lambda: count(browser, ".chart .u-over") == 1, PATIENCE)
        until(lambda: browser.execute_script(DRAWN), PATIENCE)
        boxes = """return [...document.querySelectorAll("#heat .scale span, .chart .u-over")].map((one) => {
            const box = one.getBoundingClientRect();
            return [box.x + scrollX, box.y + scrollY, box.width, box.height] })"""
        chart, *spans = sorted(browser.execute_script(boxes), key=lambda box: (-box[2], box[0]))
        left, top, width, height = chart
        # Where the curve ends, pixel by pixel.
        ends = [
            (left + width - SIDE, top + down, SIDE, SIDE) for down in range(0, int(height) - SIDE + 1, SIDE)
        ]
        pixels = seen_in(browser, [*spans, *ends])
        for kind in KINDS:
            found = [luminances(pixels[kind, place]) for place in range(len(spans) + len(ends))]
            grounds = [sorted(one)[len(one) // 2] for one in found]
            drawn = [
                sum(contrast(one, ground) >= 3 for one in some)
                for some, ground in zip(found[len(spans) :], grounds[len(spans) :], strict=True)
            ]
            assert max(drawn) >= SIDE // 2, (scheme, kind, drawn, "no curve is seen")
            shades = grounds[: len(spans)]
            steps = [contrast(*pair) for pair in itertools.pairwise(shades)]
            assert min(steps) > 1.1, (scheme, kind, steps)
            assert shades == sorted(shades, reverse=scheme == "light"), (scheme, kind, shades)


DRAWN = """const canvas = document.querySelector(".chart canvas");
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return pixels.some((value, place) => place % 4 === 3 && value === 255)"""
"""Whether a curve stands there: it is drawn when its library has come."""


def states_without_colours(browser: webdriver.Chrome, url: str) -> None:
    """States that differ have another shape before another word."""
    browser.get(f"{url}/#/groups")
    sees(browser, "#groups tbody", "consuming", "stopped", "no leader")
    shown = """return [...document.querySelectorAll("#groups .state")].map((one) => one.innerText.trim())"""
    shapes = dict(reversed(text.split(maxsplit=1)) for text in browser.execute_script(shown))
    assert {"consuming", "stopped", "no leader"} <= shapes.keys()
    assert len({*shapes.values()}) == len(shapes), shapes


def owners_without_colours(browser: webdriver.Chrome, url: str) -> None:
    """The marks of owners differ by more than their hue, to everybody."""
    browser.get(f"{url}/#/{GROUP}")
    sees(browser, "#owners", "ana: ", "ben: ", "cleo: ")
    boxes = """return [...document.querySelectorAll("#owners canvas")].map((one) => {
        const box = one.getBoundingClientRect(); return [box.x, box.y, box.width, box.height] })"""
    places = browser.execute_script(boxes)
    pixels = seen_in(browser, places)
    for kind in KINDS:
        for one, other in itertools.combinations(range(len(places)), 2):
            pairs = zip(pixels[kind, one], pixels[kind, other], strict=True)
            differing = sum(abs(a - b) > 32 for a, b in pairs) / len(pixels[kind, one])
            assert differing > 0.05, (kind, one, other, differing)
