"""Under which names the page may be asked for: nothing that a foreign page could make its own."""

from __future__ import annotations

import http.client

import pytest

from streamlease.admin.ui.host_names import checked_names
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
        for path in ("/", "/api/overview", "/api/live", "/static/page.js", "/healthz"):
            status, said = asked_as(site, path, "evil.example:8090")
            assert (status, "evil.example" in said, "--allow-host" in said) == (421, True, True), path
        assert asked_as(site, "/api/act", "evil.example", method="POST")[0] == 421
        assert asked_as(site, "/api/overview")[0] in (400, 421)
        assert asked_as(site, "/api/overview", "127.0.0.1", "evil.example")[0] in (400, 421)
        assert asked_as(site, "/api/overview", "board.example.org")[0] == 200
        assert asked_as(site, "/api/overview", "localhost")[0] == 200


def test_a_name_that_is_none_is_refused_at_the_start(command: Command) -> None:
    outcome = command("ui", "--allow-host", "http://board.example.org")
    assert (outcome.code, "--allow-host is 'http://board.example.org'" in outcome.err) == (2, True), outcome
