"""What the server of the page answers: documents, live updates, acts, and bad input."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streamlease.http.channel_client import ChannelClient
from streamlease.http.core.channel_machine import ChannelState
from streamlease.http.core.gateway_errors import GatewayRefused
from tests.admin.command import Command, finish, until
from tests.ui.conftest import QUOTED, SUB, TOKEN, Site, consuming, serving
from tests.ui.test_logins import document


def group(site: Site) -> dict[str, object]:
    status, found, _ = site.ask(f"/api/group?subscription={QUOTED}")
    return found["summary"] if status == 200 else {}


def rows(site: Site) -> list[list[Any]]:
    found: list[list[Any]] = site.ask(f"/api/group?subscription={QUOTED}")[1]["rows"]
    return found


def test_the_documents_show_what_is_there(command: Command) -> None:
    with serving(command) as site:
        until(lambda: site.ask("/healthz")[0] == 200)
        with consuming(command):
            until(lambda: group(site).get("held") == 4)
            command.ok("publish", "flights/JFK", text="one\ntwo\n")
            until(lambda: site.ask("/api/overview")[1]["spaces"][0]["messages"] == 2)
            until(lambda: group(site)["lag"] == 0)
            _, seen, headers = site.ask("/api/overview")
        assert seen["groups"][0]["subscription"] == SUB
        assert seen["groups"][0]["leader"] is not None
        assert (seen["acts"], seen["error"]) == (False, None)
        assert headers["Content-Security-Policy"].startswith("default-src 'self'")
        _, found, _ = site.ask(f"/api/group?subscription={QUOTED}")
        assert sorted(row[0] for row in found["rows"]) == [f"flights.0.{n}" for n in range(4)]
        assert {"term", "lease"} <= {event["what"] for event in found["events"]}


async def test_the_client_of_gateways_follows_the_console(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(document(("ana", "token-of-ana", "observer")))
    key, bearer = f"group/{SUB}", "token-of-ana"
    with serving(command, "--token-file", str(file)) as site, consuming(command):
        await asyncio.to_thread(until, lambda: _held(site, bearer) == 4)
        async with ChannelClient(site.url, token=bearer) as channel, asyncio.timeout(120):
            await channel.follow(key)
            first = await anext(channel)
            assert isinstance(first, ChannelState)
            assert (first.is_first, first.state["whole"], len(first.state["rows"])) == (True, True, 4)
            command.ok("publish", "flights/JFK", text="one\n")
            async for event in channel:
                assert isinstance(event, ChannelState)
                assert not event.is_first
                if event.state["rows"]:
                    assert len(event.state["rows"]) == 1
                    break
            channel.follow("group/nothing")
            async for event in channel:
                if event.key == "group/nothing":
                    assert isinstance(event, ChannelState)
                    assert event.state == {"missing": True}
                    break
            file.write_text(document(("cleo", "token-of-cleo", "admin")))
            command.ok("publish", "flights/JFK", text="two\n")
            with pytest.raises(GatewayRefused, match="log in"):
                async for _ in channel:
                    pass  # to its end: it has no other one


def _held(site: Site, token: str) -> object:
    status, found, _ = site.ask(f"/api/group?subscription={QUOTED}", token=token)
    return found["summary"].get("held") if status == 200 else None


def test_an_act_needs_the_token(command: Command, token_file: Path) -> None:
    wanted = {"subscription": SUB, "act": "rebalance"}
    with serving(command) as site:
        status, answer, _ = site.ask("/api/act", wanted, TOKEN)
        assert (status, "--token-file" in answer["error"]) == (403, True)
    with serving(command, "--token-file", str(token_file)) as site, consuming(command):
        until(lambda: group(site).get("held") == 4)
        assert site.ask("/api/act", wanted)[0] == 401
        assert site.ask("/api/act", wanted, "wrong")[0] == 401
        assert site.ask("/api/act", wanted, TOKEN)[:2] == (
            200, {"done": True, "says": ["no moves: the group is balanced"]},
        )  # fmt: skip
        until(
            lambda: any(
                event["what"] == "act" and event["text"].startswith("rebalance by ui@127.0.0.1")
                for event in site.ask(f"/api/group?subscription={QUOTED}")[1]["events"]
            )
        )
        assert site.ask("/api/act", {"subscription": SUB, "act": "destroy"}, TOKEN)[0] == 400
        assert site.ask("/api/act", {"subscription": "nothing", "act": "rebalance"}, TOKEN)[0] == 400
        missing = {"subscription": "$shared/none/#", "act": "rebalance"}
        status, answer, _ = site.ask("/api/act", missing, TOKEN)
        assert (status, "does not exist" in answer["error"]) == (409, True)


def test_every_act_can_be_looked_at_before_it_is_done(command: Command, token_file: Path) -> None:
    with serving(command, "--token-file", str(token_file)) as site, consuming(command):

        def ask(act: str, **fields: object) -> tuple[int, object]:
            status, answer, _ = site.ask("/api/act", {"subscription": SUB, "act": act, **fields}, TOKEN)
            return status, answer.get("error") or (answer["done"], answer["says"])

        def look(act: str, **fields: object) -> list[str]:
            status, answer = ask(act, dry_run=True, **fields)
            assert isinstance(answer, tuple), answer
            assert (status, answer[0]) == (200, False)
            return list(answer[1])

        def refused(status: int, said: str, act: str, **fields: object) -> None:
            found, answer = ask(act, **fields)
            assert (found, said in str(answer)) == (status, True), answer

        until(lambda: group(site).get("held") == 4)
        command.ok("publish", "flights/JFK", text="one\ntwo\n")
        moved, owner = until(lambda: next((row[:2] for row in rows(site) if row[4] == 2), None))

        assert look("step_down") == [resigns(group(site))]
        assert look("rebalance") == ["no moves: the group is balanced"]
        assert look("move", stream=moved, borrower=owner) == [
            f"{moved} is with {owner} already, and stays there"
        ]
        assert look("release", stream=moved)[0].startswith(f"{moved} is taken from {owner}")
        refused(409, "is the last one", "drain", borrower=owner)
        refused(409, "is not drained", "undrain", borrower=owner)
        refused(400, "move needs a borrower", "move", stream=moved)

        assert look("pause", until="10m")[0].startswith("paused until 20")
        refused(409, "is not paused", "resume")
        assert ask("pause") == (200, (True, ["paused until it is resumed"]))
        assert look("resume") == ["the streams are granted again"]
        assert ask("resume") == (200, (True, ["the streams are granted again"]))

        seen = look("reset", to="earliest")
        assert seen[0] == "4 streams; 2 messages come again, 0 skipped"
        assert f"{moved} from 2 to 0" in seen
        assert look("reset", shift=-1, stream=moved)[1:] == [f"{moved} from 2 to 1"]
        refused(400, "in one way", "reset", to="earliest", shift=1)
        refused(400, "is no point in a stream", "reset", to="whenever")
        assert ask("reset", to="earliest")[0] == 200

        altered = ["max_failures 5 becomes 2", "retry_delay_ms 500 becomes 0", "expiry_ms - becomes 0"]
        wanted = {"max_failures": 2, "retry_delay": "none", "expiry": "never"}
        refused(400, "nothing is to be altered", "alter")
        refused(400, "strategy 'best' does not exist", "alter", strategy="best")
        refused(400, "max_failures is 1000", "alter", max_failures=1000, dry_run=True)
        refused(400, "retry_delay 'soon' is no duration", "alter", retry_delay="soon")
        refused(400, "alter.on_poison", "alter", on_poison="ignore")
        assert look("alter", **wanted) == altered
        assert ask("alter", **wanted) == (200, (True, altered))
        assert look("alter", **wanted) == ["nothing: it is declared so already"]

        refused(400, "to confirm that it may lose", "expire", confirm="yes")
        refused(409, "has 1 borrower", "expire", confirm=SUB)
        refused(409, "has 1 borrower", "expire", dry_run=True)

        refused(400, "type $shared/demo/flights/# to confirm", "delete", confirm="yes", force=True)
        refused(409, "stop them first", "delete", confirm=SUB)
        assert look("delete", force=True) == [f"{SUB} with its progress and its history"]
        assert ask("delete", confirm=SUB, force=True) == (200, (True, [f"{SUB} is deleted"]))
        until(lambda: site.ask("/api/overview")[1]["groups"] == [])


def resigns(led: dict[str, Any]) -> str:
    """What stepping down would do where there is no leader host."""
    return (
        f"{led['leader']} would resign from term {led['term']}; no other leader host takes leaders, so it, "
        f"or a client, leads again when a consumer asks; consumers keep their streams"
    )


def test_a_host_hands_its_groups_over_and_takes_leaders_again(command: Command, token_file: Path) -> None:
    words = ("--token-file", str(token_file))
    hosts = [command.start("serve", "--http-port", "0") for _ in range(2)]
    try:
        with serving(command, *words) as site, consuming(command):

            def act(act: str, **fields: object) -> tuple[int, list[str]]:
                status, answer, _ = site.ask("/api/act", {"act": act, "host": led, **fields}, TOKEN)
                return status, answer.get("says") or [answer["error"]]

            def alive() -> dict[str, bool]:
                return {one["host"]: one["drained"] for one in site.ask("/api/overview")[1]["hosts"]}

            until(lambda: len(alive()) == 2)
            led = str(until(lambda: leader if (leader := group(site).get("leader")) in alive() else None))
            until(lambda: group(site).get("held") == 4)
            (other,) = alive().keys() - {led}
            hands = f"{led} would hand 1 leader to {other}, one by one, and take none; leases stay"
            until(lambda: act("drain_host", dry_run=True) == (200, [hands]))
            follows = site.ask("/api/act", {"act": "step_down", "subscription": SUB, "dry_run": True}, TOKEN)
            assert "; one of 1 other leader host follows; " in follows[1]["says"][0]
            assert act("undrain_host", dry_run=True) == (200, [f"nothing: {led} is not drained already"])
            assert alive()[led] is False
            status, says = act("drain_host")
            assert (status, says) == (200, [f"{led} hands over 1 group, one by one", "demo/flights/#"])
            until(lambda: alive()[led])
            until(lambda: group(site)["leader"] in alive().keys() - {led})
            assert group(site)["held"] == 4, "its consumer keeps its streams"
            assert act("undrain_host") == (200, [f"{led} takes leaders again"])
            until(lambda: not alive()[led])
    finally:
        for process in hosts:
            finish(process)


def test_a_group_that_is_not_there_is_said_so(command: Command) -> None:
    with serving(command) as site:
        until(lambda: site.ask("/healthz")[0] == 200)
        status, answer, _ = site.ask("/api/group?subscription=%24shared%2Fx%2F%23")
        assert (status, answer["error"]) == (404, "there is no group '$shared/x/#'")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--http-port", "70000"), "--http-port is 70000: it must be from 0 to 65535"),
        (("--http-host", ""), "cannot listen on '': give an address of this machine"),
        (("--token-file", "/nowhere"), "--token-file is /nowhere, which cannot be read"),
    ],
)
def test_bad_settings_are_refused(command: Command, words: tuple[str, ...], said: str) -> None:
    outcome = command("ui", *words)
    assert (outcome.code, said in outcome.err) == (2, True), outcome


def test_a_short_token_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("secret")
    outcome = command("ui", "--token-file", str(tmp_path / "short"))
    assert (outcome.code, "has 6 characters" in outcome.err) == (2, True), outcome
