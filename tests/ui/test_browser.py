"""The page in a real browser: it shows what is there, follows what happens, and acts for who has a token."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from streamlease.admin.ui.board import INTERVAL_SECONDS
from streamlease.leader.core.state.operated import Acted
from streamlease.leader.core.state.outcomes import GroupPaused
from streamlease.leader.core.state.records import (
    Failed,
    HandedOver,
    Leased,
    Record,
    StreamsAdded,
    TermStarted,
    encode_records,
)
from streamlease.registry import keys
from streamlease.registry.hosts import HostInfo
from tests.admin.command import Command, until
from tests.conftest import MakeServer
from tests.ui.browsing import PATIENCE, click, count, element, fill, sees, text_of
from tests.ui.conftest import QUOTED, SUB, TOKEN, Site, consuming, serving

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


def rows_of(site: Site) -> list[list[Any]]:
    """The rows of the group's streams."""
    found: list[list[Any]] = site.ask(f"/api/group?subscription={QUOTED}")[1]["rows"]
    return found


def test_the_page_follows_a_group_from_its_first_consumer_to_a_hand_over(
    command: Command, browser: webdriver.Chrome
) -> None:
    with serving(command) as site:
        browser.get(f"{site.url}/#/groups")
        sees(browser, "#state", "live")
        sees(browser, "#groups .more", "There are no groups.")
        with consuming(command):
            sees(browser, "#groups tbody", SUB, "4 / 4")
            click(browser, "#groups tbody a")
            sees(browser, "#group h1", SUB)
            sees(browser, "#group .facts", "4 of 4 streams held by 1 consumer;")
            command.ok("publish", "flights/JFK", text="one\ntwo\nthree\n")
            sees(browser, "#group .facts", "lag 0")
            with consuming(command):
                sees(browser, "#group .facts", "held by 2 consumers")
                sees(browser, "#events", "hand-over")
                until(lambda: count(browser, "#owners li") == 2, PATIENCE)
            field = element(browser, "#group .filter")
            field.send_keys("flights.0.3")
            until(lambda: count(browser, "#group tbody tr") == 1, PATIENCE)
            field.send_keys(Keys.CONTROL, "a")
            field.send_keys(Keys.DELETE)
            assert count(browser, "[data-act]") == 0
        click(browser, "a[data-page=spaces]")
        sees(browser, "#spaces tbody", "flights", "flights/#")
        click(browser, "a[data-page=hosts]")
        sees(browser, "#hosts .more", "There are no leader hosts")
    sees(browser, "#state", "no connection")


def test_an_act_asks_for_the_token_and_shows_in_the_list(
    command: Command, browser: webdriver.Chrome, token_file: Path
) -> None:
    with serving(command, "--token-file", str(token_file)) as site, consuming(command):
        browser.get(f"{site.url}/#/group/{QUOTED}")
        sees(browser, "#group .facts", "4 of 4 streams held")
        sees(browser, ".acts", "Rebalance")
        click(browser, "[data-act=rebalance]")
        for token, said in (("", "Give the token first"), ("wrong", "the token is missing or wrong")):
            fill(browser, "#act [name=token]", token)
            click(browser, "[data-do=execute]")
            sees(browser, "#act .answer", said)
        fill(browser, "#act [name=token]", TOKEN)
        click(browser, "[data-do=show]")
        sees(browser, "#act .answer", "this would be done; nothing was changed")
        sees(browser, "#act .says", "no moves: the group is balanced")
        click(browser, "[data-do=execute]")
        sees(browser, "#act .answer", "done:")
        click(browser, "[data-do=close]")
        sees(browser, "#events", "act: rebalance by ui@127.0.0.1")


def test_the_settings_of_a_space_are_shown_first_and_new_streams_are_made_once(
    command: Command, browser: webdriver.Chrome, token_file: Path
) -> None:
    with serving(command, "--token-file", str(token_file)) as site:
        browser.get(f"{site.url}/#/space/flights")
        click(browser, "[data-act=alter_space]")
        fill(browser, "#act [name=token]", TOKEN)
        for field, value in (("retention", "3d"), ("retention_force", "yes"), ("streams", "6")):
            fill(browser, f"#act [name={field}]", value)
        click(browser, "[data-do=show]")
        says = ("retention none becomes 3d", "retention-force no becomes yes", "streams 4 becomes 6")
        sees(browser, "#act .says", *says)
        sees(browser, "#act .answer", "nothing was changed")
        where = "return document.querySelector('#act .says').getBoundingClientRect().bottom <= innerHeight"
        until(lambda: browser.execute_script(where), PATIENCE)
        click(browser, "[data-do=execute]")
        sees(browser, "#act .answer", "type flights to confirm")
        fill(browser, "#act [name=confirm]", "flights")
        click(browser, "[data-do=execute]")
        sees(browser, "#act .answer", "done:")
        sees(browser, "#act .says", *says)
        click(browser, "[data-do=execute]")
        sees(browser, "#act .says", "nothing: it is so already")
        click(browser, "[data-do=close]")
        sees(browser, "#space .facts-list", ", whatever groups need", "1: 6 streams")


def test_a_reset_is_shown_first_and_a_deletion_must_be_typed(
    command: Command, browser: webdriver.Chrome, token_file: Path
) -> None:
    with serving(command, "--token-file", str(token_file)) as site, consuming(command):
        browser.get(f"{site.url}/#/group/{QUOTED}")
        sees(browser, "#group .facts", "4 of 4 streams held")
        command.ok("publish", "flights/JFK", text="one\ntwo\n")
        until(lambda: [r[4] for r in rows_of(site) if r[4]] == [2], PATIENCE)
        click(browser, "[data-act=reset]")
        fill(browser, "#act [name=token]", TOKEN)
        fill(browser, "#act [name=to]", "earliest")
        click(browser, "[data-do=show]")
        sees(browser, "#act .says", "4 streams; 2 messages come again, 0 skipped", "from 2 to 0")
        click(browser, "[data-do=close]")
        click(browser, "[data-act=delete]")
        until(lambda: count(browser, "#act [name=confirm]") == 1, PATIENCE)
        assert count(browser, "#act [name=token]") == 0, "who looked at one act has logged in"
        click(browser, "[data-do=execute]")
        sees(browser, "#act .answer", f"type {SUB} to confirm")
        click(browser, "#act [name=force]")
        fill(browser, "#act [name=confirm]", SUB)
        click(browser, "[data-do=execute]")
        sees(browser, "#act .says", f"{SUB} is deleted")
        click(browser, "[data-do=close]")
        sees(browser, "#group .facts", "There is no such group.")


def test_names_that_are_code_are_shown_as_text(command: Command, browser: webdriver.Chrome) -> None:
    """Of groups, filters, topics, spaces, hosts and borrowers, as whoever writes to Redis may choose them."""
    code = "<img src=x onerror=window.pwned=1>"
    sub = f"$shared/{code}/hostile/{code}"
    group = f"{code}/hostile/{code}"
    assert command.url is not None
    command.ok("space", "create", "hostile", "--topics", f"hostile/{code}")
    command.ok("group", "declare", sub)
    records = encode_records(
        [
            TermStarted(term=1, host=code),
            StreamsAdded(starts={"hostile.0.0": 0}),
            Leased(stream="hostile.0.0", lease_epoch=1, name=code, session=code),
            Acted(who=code, request="r", at=1, outcome=GroupPaused(until=1)),
        ]
    )
    with redis.Redis.from_url(command.url) as store:
        store.hset("sl:{spaces}:defs", code, f'{{"name": "{code}"}}')
        store.xadd(keys.journal(group), {"r": records, "t": 1, "n": 1})
        with serving(command) as site:
            browser.get(f"{site.url}/#/groups")
            sees(browser, "#groups", sub)
            sees(browser, "#damaged", code)
            browser.get(f"{site.url}/#/spaces")
            sees(browser, "#spaces", f"hostile/{code}")
            browser.get(f"{site.url}/#/hosts")

            def shown() -> bool:  # a host is forgotten if it says nothing
                seconds, microseconds = store.time()
                store.zadd(keys.HOSTS_ALIVE, {code: seconds * 1000 + microseconds // 1000})
                store.hset(keys.HOSTS_INFO, code, HostInfo(host=code, name=code).model_dump_json())
                return code in text_of(browser, "#hosts")

            until(shown, PATIENCE)
            browser.get(f"{site.url}/#/group/{quote(sub, safe='')}")
            sees(browser, "#owners", code)
            sees(browser, "#events", code)
            sees(browser, "#group h1", sub)
            assert browser.execute_script("return [window.pwned, document.images.length]") == [None, 1]


def test_messages_are_found_shown_whole_published_and_linked_to(
    command: Command, browser: webdriver.Chrome, token_file: Path
) -> None:
    command.ok("publish", "flights/JFK", text="one\ntwo\n")
    command.ok("publish", "flights/GVA", text="three <b>bold</b>\n")
    with serving(command, "--token-file", str(token_file)) as site:
        browser.get(f"{site.url}/#/spaces")
        click(browser, "#spaces tbody a")
        sees(browser, "#space", "flights/#", "Groups that read it")
        click(browser, "[data-tab=messages]")
        sees(browser, "#messages tbody", "one", "two", "three <b>bold</b>")
        sees(browser, "#found", "3 found of 3 looked at; there are no more")
        field = element(browser, "#question [name=text]")
        field.send_keys("TWO", Keys.ENTER)
        until(lambda: count(browser, "#messages tbody tr") == 1, PATIENCE)
        click(browser, "#messages tbody td a")
        sees(browser, "#message", "two", "flights/JFK", "← before")
        browser.refresh()
        sees(browser, "#message", "two")
        sees(browser, "#found", "1 found of 3 looked at")
        assert count(browser, "#messages tbody tr") == 1, "the question stands in the address"
        element(browser, "#message").send_keys(Keys.ESCAPE)
        until(lambda: count(browser, "#message") == 0, PATIENCE)
        click(browser, "[data-tab=topics]")
        sees(browser, "#topics tbody", "flights/GVA", "flights/JFK")
        click(browser, "#topics tbody tr:first-child a")
        sees(browser, "#messages tbody", "three")
        click(browser, "[data-act=publish]")
        for name, text in (("topic", "flights/OSL"), ("payload", "four"), ("headers", "source: test")):
            fill(browser, f"#act [name={name}]", text)
        fill(browser, "#act [name=token]", TOKEN)
        click(browser, "[data-do=show]")
        sees(browser, "#act .says", "it would go to flights.0.")
        click(browser, "[data-do=execute]")
        sees(browser, "#act .answer", "done:")
        click(browser, "[data-do=close]")
        browser.get(f"{site.url}/#/space/flights?tab=messages&topic=flights/OSL")
        sees(browser, "#messages tbody", "four")


def test_the_whole_at_a_glance_sorted_by_keyboard_and_the_catalog(
    command: Command, browser: webdriver.Chrome
) -> None:
    command.ok("group", "declare", "$shared/audit/#", "--from", "earliest")
    command.ok("group", "declare", "$shared/none/flights/none", "--from", "earliest")
    command.ok("publish", "flights/JFK", text="one\ntwo\n")
    with serving(command) as site, consuming(command):
        browser.get(site.url)
        sees(browser, "#attention", "$shared/audit/#", "2 messages wait")
        sees(browser, ".flow", "flights", SUB, "no leader", "1 borrower")
        # The lines of the picture, for who cannot see them.
        sees(browser, "#flows", f"read: flights by {SUB}", f"consumed: {SUB} by ")
        click(browser, "#attention a")
        sees(browser, "#group h1", "$shared/audit/#")
        sees(browser, "#group tbody", "flights.0.3")
        browser.get(f"{site.url}/#/groups")
        names = 'return [...document.querySelectorAll("#groups tbody a")].map((one) => one.textContent)'
        until(lambda: len(browser.execute_script(names)) == 3, PATIENCE)
        head = element(browser, "#groups th button")
        head.send_keys(Keys.ENTER)
        up = browser.execute_script(names)
        head.send_keys(Keys.SPACE)
        assert browser.execute_script(names) == up[::-1] == sorted(up, reverse=True)
        element(browser, "body").send_keys("/")
        assert browser.execute_script("return document.activeElement.className") == "filter"
        browser.get(f"{site.url}/#/catalog/leases")
        sees(browser, "#catalog tbody", "flights.0.3", SUB)
        browser.get(f"{site.url}/#/group/{QUOTED}?tab=why")
        sees(browser, "#why", "flights.0.3", "granted")
        judge = (Path(__file__).parent / "judge.js").read_text()
        assert browser.execute_script(f"{judge} return judge()") == []


def test_nobody_sees_anything_without_a_login_and_the_other_server_is_one_click_away(
    command: Command, browser: webdriver.Chrome, tmp_path: Path, make_redis_server: MakeServer
) -> None:
    (tmp_path / "other").mkdir()
    other = Command(tmp_path / "other", make_redis_server().url)
    other.ok("space", "create", "calls", "--topics", "calls/#")
    tokens = [
        {"name": name, "sha256": hashlib.sha256(f"token-{name}".encode()).hexdigest(), "role": role}
        for name, role in (("ana", "operator"), ("ben", "observer"))
    ]
    (tmp_path / "tokens").write_text(json.dumps({"tokens": tokens}))
    words = ("--token-file", str(tmp_path / "tokens"), "--server", f"other={other.url}")
    with serving(command, *words) as site:
        assert [site.ask(path)[0] for path in ("/api/overview", "/api/look/space?space=flights")] == [
            401,
            401,
        ]
        assert site.ask("/api/look/space?space=flights", token="token-ben")[0] == 200
        assert site.ask("/api/overview?server=third", token="token-ben")[0] == 404
        publish = {"act": "publish", "topic": "flights/a", "payload": "x"}
        assert site.ask("/api/act", publish, "token-ben")[0] == 403
        status, said, _ = site.ask("/api/act", {"act": "delete", "subscription": SUB}, "token-ana")
        assert (status, "only an admin may delete" in said["error"]) == (403, True)
        assert site.ask("/api/act", publish, "token-ana")[0] == 200
        browser.get(f"{site.url}/#/space/flights?tab=messages")
        for token, answer in (("wrong", "missing or wrong"), ("token-ana", "")):
            fill(browser, ".login [name=token]", token)
            click(browser, ".login button")
            sees(browser, ".login" if answer else "#who", answer or "ana · operator")
        sees(browser, "#messages tbody", "flights/a")
        browser.execute_script(
            "const one = document.querySelector('#servers'); one.value = 'other';"
            "one.dispatchEvent(new Event('change'))"
        )
        until(lambda: "server=other" in browser.current_url, PATIENCE)
        sees(browser, ".flow", "calls")
        assert "flights" not in text_of(browser, "main")
        click(browser, "a[data-page=spaces]")
        sees(browser, "#spaces tbody", "calls/#")
        assert "server=other" in browser.current_url
        assert count(browser, "#spaces tbody tr") == 1
        click(browser, "#spaces tbody a")
        sees(browser, "#space h1", "calls")
        click(browser, "[data-act=publish]")
        fill(browser, "#act [name=topic]", "calls/a")
        fill(browser, "#act [name=payload]", "over there")
        click(browser, "[data-do=execute]")
        sees(browser, "#act .answer", "done:")
        browser.refresh()
        click(browser, "[data-tab=messages]")
        sees(browser, "#messages tbody", "over there")
        assert site.ask("/api/look/messages?space=calls", token="token-ana")[0] == 404, "not at the first one"


def test_live_is_said_as_long_as_it_is_true(
    browser: webdriver.Chrome, tmp_path: Path, make_redis_server: MakeServer
) -> None:
    server = make_redis_server()
    command = Command(tmp_path, server.url)
    command.ok("space", "create", "flights", "--topics", "flights/#")
    with serving(command) as site:
        browser.get(f"{site.url}/#/spaces")
        sees(browser, "#spaces tbody", "flights/#")
        sees(browser, "#state", "live")
        server.pause()
        sees(browser, "#state", "as it was", "s ago")
        assert "flights/#" in text_of(browser, "#spaces tbody"), "what was known stays"
        server.resume()
        until(lambda: text_of(browser, "#state") == "live", PATIENCE)
        server.stop()
        sees(browser, "#state", "Redis does not answer")
        assert text_of(browser, "#problem") != ""
        assert site.ask("/healthz")[0] == 503


POLLS = "return performance.getEntriesByType('resource').filter((one) => one.name.endsWith('/poll')).length"
HIDE = """
Object.defineProperty(document, "hidden", { configurable: true, get: () => arguments[0] });
document.dispatchEvent(new Event("visibilitychange"));
"""


def test_a_tab_follows_what_it_shows_rests_unseen_and_notices_a_console_that_began_anew(
    command: Command, browser: webdriver.Chrome
) -> None:
    command.ok("group", "declare", SUB, "--from", "earliest")
    known = (
        "const { groups, spaces, group } = window.streamlease.store; return [groups.size, spaces.size, group]"
    )
    with serving(command) as site:
        browser.get(f"{site.url}/#/groups")
        sees(browser, "#groups tbody", SUB)
        assert browser.execute_script(known) == [1, 0, None], "spaces are another page"
        click(browser, "a[data-page=spaces]")
        sees(browser, "#spaces tbody", "flights/#")
        assert browser.execute_script(known) == [0, 1, None]
        click(browser, "#spaces tbody a")
        sees(browser, "#space", "Groups that read it", SUB)
        assert browser.execute_script(known) == [1, 1, None], "this space, and the groups that read it"
        click(browser, "a[data-page=hosts]")
        sees(browser, "#state", "live")
        assert browser.execute_script(known) == [0, 0, None]
        browser.execute_script(HIDE, True)
        sees(browser, "#state", "resting: nobody looks")
        polls = browser.execute_script(POLLS)
        for _ in range(3):
            time = site.ask("/api/overview")[1]["time"]
            until(lambda time=time: site.ask("/api/overview")[1]["time"] > time, PATIENCE)
        assert browser.execute_script(POLLS) == polls, "it asks for nothing"
        browser.execute_script(HIDE, False)
        sees(browser, "#state", "live")
        click(browser, "a[data-page=groups]")
        sees(browser, "#groups tbody", SUB)
    sees(browser, "#state", "no connection, trying again")
    assert SUB in text_of(browser, "#groups tbody"), "what was known stays"
    command.ok("group", "declare", "$shared/second/flights/#", "--from", "earliest")
    with serving(command, "--http-port", site.url.rpartition(":")[2]):
        sees(browser, "#groups tbody", SUB, "$shared/second/flights/#")
        sees(browser, "#state", "live")


def test_a_tab_that_nobody_sees_costs_nothing(command: Command, browser: webdriver.Chrome) -> None:
    """It is let go after a while, and then neither the console nor Redis has anything to do for it."""
    assert command.url is not None
    # A tenth of the time will do here.
    hurried = """const wait = window.setTimeout.bind(window);
        window.setTimeout = (work, ms, ...more) => wait(work, ms >= 10000 ? ms / 10 : ms, ...more)"""
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": hurried})
    with redis.Redis.from_url(command.url) as store, serving(command) as site:

        def asked() -> int:
            return int(store.info("stats")["total_commands_processed"])  # type: ignore[index]

        def quiet() -> bool:
            """Redis has heard this test alone, while there was time for four looks."""
            first = asked()
            for number in range(1, 31):
                time.sleep(2 * INTERVAL_SECONDS / 15)
                if asked() != first + number:
                    return False
            return True

        browser.get(f"{site.url}/#/spaces")
        sees(browser, "#state", "live")
        sees(browser, "#spaces tbody", "flights/#")
        assert not quiet()
        shown = browser.current_window_handle
        browser.switch_to.new_window("tab")
        try:
            until(quiet, PATIENCE)
            command.ok("space", "create", "calls", "--topics", "calls/#")
        finally:
            browser.close()
            browser.switch_to.window(shown)
            browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
        sees(browser, "#spaces tbody", "calls/#")
        sees(browser, "#state", "live")


def test_hand_overs_fold_and_lag_is_a_map_over_time(command: Command, browser: webdriver.Chrome) -> None:
    assert command.url is not None
    command.ok("group", "declare", SUB, "--from", "earliest")
    streams = [f"flights.0.{number}" for number in range(4)]
    leased = [Leased(stream=one, lease_epoch=1, name=f"b{n % 2}", session=f"b{n % 2}")
              for n, one in enumerate(streams)]  # fmt: skip
    moved = [HandedOver(stream=one, milliseconds=100 * n, clean=True) for n, one in enumerate(streams)]
    alone = Failed(
        stream=streams[0], offset=0, lease_epoch=1, failure="f", borrower="b0", cause="odd", fate="retry"
    )
    with redis.Redis.from_url(command.url) as store:

        def write(number: int, *records: Record) -> None:
            store.xadd(keys.journal("demo/flights/#"), {"r": encode_records(records), "t": 1, "n": number})

        write(1, TermStarted(term=1, host="h"), StreamsAdded(starts=dict.fromkeys(streams, 0)), *leased)
        command.ok("publish", "flights/JFK", text="".join(f"{number}\n" for number in range(9)))
        with serving(command) as site:
            browser.get(f"{site.url}/#/group/{QUOTED}")
            sees(browser, "#events", "lease: 4 streams to 2 consumers", "term: h leads in term 1")
            write(2, *moved)
            sees(browser, "#events", "hand-over: 4 streams, the slowest within 300 ms")
            write(3, alone)
            sees(browser, "#events", "failure: offset 0 of flights.0.0 failed: odd")
            assert "flights.0.3 within" not in text_of(browser, "#events")
            assert count(browser, "#events > li") == 4, "term, leases, hand-overs, failure"
            element(browser, "#events li:nth-child(2) summary").send_keys(Keys.ENTER)
            sees(browser, "#events", *(f"{one} within {100 * n} ms" for n, one in enumerate(streams)))
            click(browser, "[data-tab=heat]")
            sees(browser, "#heat", "Lag by stream over time, worst first", "9")
            busy = next(row[0] for row in rows_of(site) if row[6] == 9)
            label = browser.execute_script("return document.querySelector('#heat canvas').ariaLabel")
            assert f"most had {busy}, 9" in label
            canvas = element(browser, "#heat canvas")

            def pointed() -> bool:  # the page above may still find its place
                ActionChains(browser).move_to_element_with_offset(canvas, 200, -8).perform()
                return f"{busy} at " in text_of(browser, "#heat output")

            until(pointed, PATIENCE)
            assert text_of(browser, "#heat output").endswith(": 9")
