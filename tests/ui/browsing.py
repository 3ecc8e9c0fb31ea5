"""What the tests do with a real browser, and see there."""

from __future__ import annotations

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.admin.command import until

PATIENCE = 60.0
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1400,1100",
)  # fmt: skip


def text_of(browser: webdriver.Chrome, selector: str) -> str:
    """The text that a user sees there; empty where there is nothing."""
    return str(
        browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
    )


def sees(browser: webdriver.Chrome, selector: str, *texts: str) -> None:
    """Wait until all `texts` are shown there."""
    try:
        until(lambda: all(text in text_of(browser, selector) for text in texts), PATIENCE)
    except AssertionError:
        shown = text_of(browser, selector)
        lacks = [text for text in texts if text not in shown]
        raise AssertionError(f"{browser.current_url} lacks {lacks} in {selector}: {shown}") from None


def click(browser: webdriver.Chrome, selector: str) -> None:
    until(lambda: count(browser, selector) > 0, PATIENCE)
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def count(browser: webdriver.Chrome, selector: str) -> int:
    return int(browser.execute_script("return document.querySelectorAll(arguments[0]).length", selector))


def fill(browser: webdriver.Chrome, selector: str, text: str) -> None:
    """As if somebody had typed it there."""
    until(lambda: count(browser, selector) > 0, PATIENCE)
    browser.execute_script("document.querySelector(arguments[0]).value = arguments[1]", selector, text)


def element(browser: webdriver.Chrome, selector: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, selector)
