"""Make the pictures of the console in ``docs/images``: ``.venv/bin/python scripts/pictures.py [FOLDER]``.

They show what the tests of the console look at (``tests/ui/stage.py``), in a real Chromium. Run it after a
change of what a page looks like, and look at the pictures before they are committed.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.installation import require_installation  # noqa: E402

require_installation("pictures.py")

from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402

from tests.admin.command import Command  # noqa: E402
from tests.servers import Kind, RedisServer  # noqa: E402
from tests.ui.browsing import QUIET, click, fill, sees  # noqa: E402
from tests.ui.conftest import TOKEN, browser_program, serving  # noqa: E402
from tests.ui.stage import ALONE, BUSY, STOPPED, staged  # noqa: E402

WIDTH, HEIGHT = 1440, 900


@contextmanager
def browsing(folder: Path) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for argument in (*QUIET, f"--user-data-dir={folder}", f"--window-size={WIDTH},{HEIGHT}"):
        options.add_argument(argument)
    options.binary_location = browser_program("chromium", "google-chrome")
    browser = webdriver.Chrome(options=options, service=Service(browser_program("chromedriver")))
    try:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        yield browser
    finally:
        browser.quit()


def take(browser: webdriver.Chrome, file: Path) -> None:
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    file.write_bytes(base64.b64decode(shot["data"]))


def pictures(browser: webdriver.Chrome, url: str, out: Path) -> None:
    """Each of them, once all that it shows is there."""
    browser.get(url)
    sees(browser, "#state", "live")
    login = """const done = arguments[1]; fetch("/api/login", { method: "POST", body: arguments[0],
        headers: { "Content-Type": "application/json" } }).then((answer) => done(answer.status))"""
    assert browser.execute_async_script(login, f'{{"token": "{TOKEN}"}}') == 200
    browser.refresh()
    sees(browser, "main", STOPPED, ALONE, "report failed", "consuming")
    take(browser, out / "console-home.png")
    browser.get(f"{url}/#/space/trips?tab=messages")
    sees(browser, "main", "Genève", "car-2")
    take(browser, out / "console-messages.png")
    browser.get(f"{url}/#/group/{quote(BUSY, safe='')}")
    click(browser, "main [data-act=reset]")
    fill(browser, "#act [name=to]", "earliest")
    click(browser, "#act [data-do=show]")
    sees(browser, "#act", "this would be done; nothing was changed:", "come again")
    take(browser, out / "ui-act.png")


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "token").write_text(TOKEN)
        server = RedisServer(Kind.EMBEDDED, scratch / "redis").start()
        try:
            command = Command(scratch, server.url)
            with (
                staged(server.url, str(scratch / "archive")),
                serving(command, "--token-file", str(scratch / "token")) as site,
                browsing(scratch / "browser") as browser,
            ):
                pictures(browser, site.url, out)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
