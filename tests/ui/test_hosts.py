"""Under which names the page may be asked for: nothing that a foreign page could make its own."""

from __future__ import annotations

import http.client

import pytest

from streamlease.admin.ui.host_names import checked_names, sent_by_another
from streamlease.protocol.addresses import host_name, is_allowed
from streamlease.protocol.errors import InvalidOption
from tests.admin.command import Command
from tests.ui.conftest import Site, serving

NAMES = checked_names(["Board.Example.org", "short"])


@pytest.mark.parametrize(
    "header",
    [
        "127.0.0.1", "127.0.0.1:8090", "[::1]:8090", "[::1]", "10.1.2.3:80", "localhost", "LOCALHOST:1",
        "page.localhost:8090", "board.example.org", "BOARD.example.ORG:443", "board.example.org.", "short:80",
    ],
)  # fmt: skip
def test_addresses_localhost_and_allowed_names_are_served(header: str) -> None:
    assert is_allowed(header, NAMES)


@pytest.mark.parametrize(
    "header",
    [
        None, "", "evil.example", "evil.example:8090", "127.0.0.1.evil.example", "localhost.evil.example",
        "notlocalhost", "board.example.org.evil.example", "x.board.example.org", "127.0.0.1@evil.example",
        "evil.example#127.0.0.1", "127.0.0.1 evil.example", "[::1", "[evil.example]",
        "board.example.org:port", "127.0.0.1:8090:8090", "0x7f.1.evil",
    ],
)  # fmt: skip
def test_all_other_names_are_not(header: str | None) -> None:
    assert not is_allowed(header, NAMES)


@pytest.mark.parametrize("name", ["", "http://board", "board/x", "board:80", "a b", "[::1]:80", "*"])
def test_what_is_no_name_cannot_be_allowed(name: str) -> None:
    with pytest.raises(InvalidOption, match="--allow-host is"):
        checked_names([name])


def test_a_name_is_compared_without_port_case_and_final_dot() -> None:
    assert [host_name(given) for given in ("A.b.:80", "[::1]:80", "a_b")] == ["a.b", "::1", "a_b"]


def asked_as(site: Site, path: str, *hosts: str, method: str = "GET") -> tuple[int, str]:
    """Status and body of a request with these ``Host`` headers."""
    connection = http.client.HTTPConnection(site.url.removeprefix("http://"), timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True)
        for host in hosts:
            connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_page_whose_name_was_made_to_point_here_reads_nothing(command: Command) -> None:
    with serving(command, "--allow-host", "board.example.org") as site:
        for path in ("/", "/api/overview", "/v1/channels/a", "/static/page.js", "/healthz"):
            status, said = asked_as(site, path, "evil.example:8090")
            assert (status, "evil.example" in said, "--allow-host" in said) == (421, True, True), path
        assert asked_as(site, "/api/act", "evil.example", method="POST")[0] == 421
        assert asked_as(site, "/api/overview")[0] in (400, 421)
        assert asked_as(site, "/api/overview", "127.0.0.1", "evil.example")[0] in (400, 421)
        assert asked_as(site, "/api/overview", "board.example.org")[0] == 200
        assert asked_as(site, "/api/overview", "localhost")[0] == 200


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        ({}, True),
        ({"origin": "http://10.0.0.1:8090"}, True),
        ({"origin": "HTTP://10.0.0.1:8090"}, False),
        ({"origin": "https://board.example.org"}, True),
        ({"origin": "https://board.example.org:8443"}, True),
        ({"origin": "https://board.example.org.evil.example"}, False),
        ({"origin": "http://10.0.0.1:8091"}, False),
        ({"origin": "http://10.0.0.1"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "file://10.0.0.1:8090"}, False),
        ({"sec-fetch-site": "same-origin", "origin": "https://rewritten.by.a.proxy"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-site", "origin": "http://10.0.0.1:8090"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
    ],
)
def test_only_the_consoles_own_page_and_scripts_may_send_something(
    headers: dict[str, str], own: bool
) -> None:
    assert (sent_by_another({"host": "10.0.0.1:8090", **headers}, NAMES) is None) == own


def test_the_port_of_a_scheme_may_be_left_out() -> None:
    for origin, host in (("https://a.test", "a.test:443"), ("http://a.test:80", "A.test")):
        assert sent_by_another({"host": host, "origin": origin}, frozenset()) is None
    assert sent_by_another({"host": "a.test:80", "origin": "https://a.test"}, frozenset()) is not None


def test_a_foreign_page_makes_nobody_act_through_the_proxy_that_logged_them_in(command: Command) -> None:
    """Over plain HTTP, where browsers say who asks in the origin alone."""
    wanted = {"act": "publish", "topic": "flights/a", "payload": "x"}
    ana = {"X-User": "ana", "X-Role": "operator"}
    with serving(
        command, "--proxy-user-header", "X-User", "--proxy-role-header", "X-Role",
        "--allow-host", "board.example.org",
    ) as site:  # fmt: skip

        def act(**headers: str) -> tuple[int, str]:
            given = {**ana, **{name.replace("_", "-"): value for name, value in headers.items()}}
            status, answer, _ = site.ask("/api/act", wanted, headers=given)
            return status, answer.get("error", "")

        status, said = act(Origin="http://evil.example")
        assert (status, "'http://evil.example'" in said) == (403, True)
        for form in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            status, said = act(Content_Type=form)
            assert (status, "send application/json" in said) == (415, True), form
        assert act(Sec_Fetch_Site="cross-site")[0] == 403
        assert site.ask("/api/logout", {}, headers={**ana, "Origin": "null"})[0] == 403
        # Nobody answers the question that browsers ask before they send JSON to another origin.
        asked = http.client.HTTPConnection(site.url.removeprefix("http://"), timeout=30)
        asked.request("OPTIONS", "/api/act", headers={"Origin": "http://evil.example"})
        answer = asked.getresponse()
        assert (answer.status, answer.getheader("Access-Control-Allow-Origin")) == (405, None)
        asked.close()
        assert act(Origin=site.url) == (200, "")
        assert act(Origin="https://board.example.org", Content_Type="application/json; charset=utf-8") == (
            200, "",
        )  # fmt: skip
        session = site.ask("/api/session", headers=ana)[1]
        assert (session["name"], session["role"]) == ("ana", "operator")
        status, answer, _ = site.ask("/api/act", wanted, headers={"X-User": "ben"})
        assert (status, "operator" in answer["error"]) == (403, True)
        status, answer, _ = site.ask("/api/overview")
        assert (status, answer["error"]) == (401, "log in to see this")


def test_from_another_address_the_headers_of_a_proxy_are_ignored(command: Command) -> None:
    words = ("--proxy-user-header", "X-User", "--proxy-role-header", "X-Role", "--proxy-address", "192.0.2.1")
    with serving(command, *words) as site:
        forged = {"X-User": "ana", "X-Role": "admin"}
        assert site.ask("/api/overview", headers=forged)[0] == 401
        assert site.ask("/api/act", {"act": "publish", "topic": "flights/a"}, headers=forged)[0] == 401


def test_a_name_that_is_none_is_refused_at_the_start(command: Command) -> None:
    outcome = command("ui", "--allow-host", "http://board.example.org")
    assert (outcome.code, "--allow-host is 'http://board.example.org'" in outcome.err) == (2, True), outcome
