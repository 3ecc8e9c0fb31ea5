"""In a browser: what the console says where it cannot show what was asked for; the diffs of a collection."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from selenium import webdriver

from tests.admin.command import Command, until
from tests.ui.browsing import PATIENCE, click, count, element, fill, sees, text_of
from tests.ui.conftest import TOKEN, serving
from tests.ui.stage import STOPPED, staged

HEAT = "#heat canvas:not(.unknown)"
"""The picture; on a busy machine a lag may be unknown for a while, whose hatching stands below it, too."""

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


def test_what_cannot_be_shown_is_said(
    embedded_redis_url: str, browser: webdriver.Chrome, token_file: Path, tmp_path: Path
) -> None:
    command = Command(tmp_path, embedded_redis_url)
    with (
        staged(embedded_redis_url, str(tmp_path / "archive")),
        serving(command, "--token-file", str(token_file)) as site,
    ):
        browser.get(f"{site.url}/#/group/{quote('$shared/nobody/none/#', safe='')}")
        sees(browser, "main", "There is no such group.")
        browser.get(f"{site.url}/#/space/nowhere")
        sees(browser, "main", "There is no such space.")
        sees_that_the_heat_map_is_not_of_now(browser, site.url)
        follows_what_needs_attention_to_the_dead_letters(browser, site.url)


def sees_that_the_heat_map_is_not_of_now(browser: webdriver.Chrome, url: str) -> None:
    """It cannot be read any more, then from the beginning, and then again."""
    browser.execute_cdp_cmd("Network.enable", {})
    try:
        browser.get(f"{url}/#/group/{quote(STOPPED, safe='')}?tab=heat")
        until(lambda: count(browser, HEAT) == 1, PATIENCE)
        browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/api/heat*"]})
        sees(browser, "#group .problem", "Not as it is now: ")
        assert count(browser, HEAT) == 1, "what is known stays"
        browser.refresh()
        sees(browser, "#group .problem")
        assert "Not as it is now" not in text_of(browser, "#group .problem"), "nothing is shown"
        assert count(browser, "#heat canvas") == 0
    finally:
        browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
        browser.execute_cdp_cmd("Network.disable", {})
    until(lambda: count(browser, HEAT) == 1, PATIENCE)
    assert count(browser, "#group .problem") == 0


def follows_what_needs_attention_to_the_dead_letters(browser: webdriver.Chrome, url: str) -> None:
    """Among the last of the list; the act beside it replays them, the link leads to them."""
    browser.get(f"{url}/#/")
    sees(browser, "#attention", STOPPED)

    def is_shown() -> bool:
        """The list is cut once it is long, which it may become while it is looked at."""
        if text_of(browser, "#attention + button").startswith("Show all"):
            click(browser, "#attention + button")
        return "1 message failed too often, and nobody replayed it" in text_of(browser, "#attention")

    try:
        until(is_shown, PATIENCE)
    except AssertionError:
        raise AssertionError(f"no message failed too often: {text_of(browser, 'body')}") from None
    # The link first: once the message is replayed, and the page has looked, it is in the list no more.
    click(browser, "#attention a[href$='tab=letters']")
    sees(browser, "#letters tbody", "ValueError: no number", "flight ", "Replay")
    letters = browser.current_url
    browser.back()
    until(is_shown, PATIENCE)
    click(browser, "#attention [data-act=replay]")
    sees(browser, "#act", STOPPED)
    fill(browser, "#act [name=token]", TOKEN)
    click(browser, "[data-do=execute]")
    sees(browser, "#act .answer", "done:")
    click(browser, "[data-do=close]")
    until(lambda: "nobody replayed it" not in text_of(browser, "#attention"), PATIENCE)
    browser.get(letters)
    sees(browser, "#letters tbody", "ValueError: no number", "flight ", " by ")
    assert count(browser, "#letters [data-act=replay]") == 0, "it was replayed"


HELD_BACK = """
    window.heldBack = true;
    window.addEventListener("hashchange", (event) => {
      if (window.heldBack) event.stopImmediatePropagation();
    });
"""


def test_a_page_is_drawn_when_it_is_followed_not_when_its_address_is_there(
    command: Command, browser: webdriver.Chrome, token_file: Path
) -> None:
    """The browser tells of another address a moment later; what comes in between is of the page before."""
    command.ok("space", "create", "lanes", "--topics", "lanes/#")
    with serving(command, "--token-file", str(token_file)) as site:
        script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": HELD_BACK})
        browser.get(f"{site.url}/#/space/lanes")
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
        sees(browser, "#space", "lanes")
        looks = browser.execute_script("location.hash = '#/'; return window.streamlease.looks")
        until(lambda: browser.execute_script("return window.streamlease.looks") >= looks + 2, PATIENCE)
        sees(browser, "#space", "lanes")
        browser.execute_script("window.heldBack = false; dispatchEvent(new HashChangeEvent('hashchange'))")
        sees(browser, "#attention", "every group is led")
        assert count(browser, "#space") == 0


def test_a_defect_of_one_page_is_told_and_stops_no_other(
    command: Command, browser: webdriver.Chrome, token_file: Path
) -> None:
    command.ok("space", "create", "lanes", "--topics", "lanes/#")
    with serving(command, "--token-file", str(token_file)) as site:
        browser.get(f"{site.url}/#/")
        sees(browser, "#attention", "every group is led")
        browser.execute_script("window.streamlease.store.overview.hosts = undefined")
        sees(browser, "#home [role=alert]", "This page could not be drawn (TypeError: ", "load it again.")
        said = browser.get_log("browser")
        assert [entry["source"] for entry in said] == ["javascript"], "its author finds it, too"
        browser.get(f"{site.url}/#/spaces")
        sees(browser, "#spaces", "lanes")
        browser.get(f"{site.url}/#/")
        sees(browser, "#attention", "every group is led")
        assert count(browser, "[role=alert]") == 0


def test_the_diffs_of_a_collection_are_given_and_shown(
    command: Command, browser: webdriver.Chrome, token_file: Path
) -> None:
    command.ok("space", "create", "seats", "--topics", "seats/#", "--collection")
    command.ok("publish", "seats/a", "--diff", "3", text="window\n")
    with serving(command, "--token-file", str(token_file)) as site:
        browser.get(f"{site.url}/#/space/seats?tab=messages")
        sees(browser, "#messages thead", "Diff")
        sees(browser, "#messages tbody", "window", "+3")
        click(browser, "#messages tbody td a")
        sees(browser, "#message", "window", "Diff", "+3")
        click(browser, "#message [data-act=publish]")
        assert element(browser, "#act [name=diff]").get_attribute("value") == "3", "as that message was"
        for name, text in (("diff", "-2"), ("token", TOKEN)):
            fill(browser, f"#act [name={name}]", text)
        click(browser, "[data-do=execute]")
        sees(browser, "#act .answer", "done:")
        click(browser, "[data-do=close]")
        browser.get(f"{site.url}/#/space/seats?tab=messages&order=oldest")
        until(lambda: count(browser, "#messages tbody tr") == 2, PATIENCE)
        sees(browser, "#messages tbody tr:last-child", "window", "-2")
