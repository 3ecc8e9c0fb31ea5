"""The console over channels: the same protocol, and the same client, as those of a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.leaders import journal_of
from streamlease.admin.ui import board as boards
from streamlease.admin.ui.app import Site, make_app
from streamlease.admin.ui.board import Board
from streamlease.admin.ui.live.console_states import BoardState
from streamlease.admin.ui.live.tab_channels import TAB_LIMITS, TabChannels, TooManyTabs
from streamlease.admin.ui.logins import Logins
from streamlease.agent.client import Client, connect
from streamlease.channels.core.channel_limits import ChannelLimits
from streamlease.http.core.channel_machine import ChannelFailed, ChannelMachine, ChannelState
from streamlease.leader.core.state.records import Committed, StreamsAdded
from streamlease.protocol.topics import SharedSubscription
from tests.agent.helpers import until
from tests.ui.test_logins import document

SHARED = SharedSubscription.parse("$shared/demo/flights/#")
KEY = f"group/{SHARED}"


class Tab:
    """A client by hand: its machine is that of ``streamlease.http``."""

    def __init__(self, http: httpx.AsyncClient, name: str = "tab", **headers: str) -> None:
        self.machine = ChannelMachine()
        self.http = http
        self.path = f"/v1/channels/{name}"
        self.headers = headers
        self.states: dict[str, list[ChannelState]] = {}
        self.failed: list[ChannelFailed] = []

    async def post(self, what: str, body: Any) -> httpx.Response:
        return await self.http.post(f"{self.path}/{what}", json=body, headers=self.headers)

    async def command(self) -> httpx.Response | None:
        said = None
        while batch := self.machine.next_commands():
            said = await self.post("commands", batch)
            if said.status_code == 200:
                self.machine.commands_taken(said.json())
            else:
                self.failed += self.machine.commands_refused(said.json())
        return said

    async def poll(self, wait: float = 20.0) -> dict[str, Any]:
        said = await self.post("poll", self.machine.next_poll(wait))
        assert said.status_code == 200, said.text
        answer: dict[str, Any] = said.json()
        for event in self.machine.polled(answer):
            assert isinstance(event, ChannelState)
            self.states.setdefault(event.key, []).append(event)
        return answer

    async def follow(self, *keys: str) -> None:
        for key in keys:
            self.machine.follow(key)
        await self.command()

    async def sees(self, key: str, what: Callable[[Any], bool]) -> Any:
        """Poll until the newest state of a key is like that."""
        async with asyncio.timeout(60):
            while not (self.states.get(key) and what(self.states[key][-1].state)):
                await self.poll()
                await self.command()
        return self.states[key][-1].state


@contextlib.asynccontextmanager
async def console(
    board: Board, client: Client, logins: Logins | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app([Site("main", client, board)], logins)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http,
    ):
        yield http


@pytest.fixture
async def client(embedded_redis_url: str) -> AsyncIterator[Client]:
    async with connect(embedded_redis_url, embedded=False) as client:
        await client.create_space("flights", ["flights/#"], streams=4)
        await client.groups.declare(SHARED, "earliest")
        yield client


@pytest.fixture
def board(client: Client) -> Board:
    return Board(client, 0.02)


async def test_each_key_begins_whole_and_goes_on_as_differences(client: Client, board: Board) -> None:
    journal = await journal_of(client.redis, SHARED.id, 1)
    streams = {f"flights.0.{n}": 0 for n in range(4)}
    await journal.write(journal.next_commit([StreamsAdded(starts=streams)]))
    async with console(board, client) as http:
        tab = Tab(http)
        await tab.follow(
            "server", "attention", "groups", "spaces", "hosts", "processes", KEY, "space/flights"
        )
        first = await tab.sees(KEY, lambda seen: len(seen["rows"]) == 4)
        assert first["whole"]
        assert {key: one[0].is_first for key, one in tab.states.items()} == dict.fromkeys(tab.states, True)
        assert set(tab.states) == {*tab.machine.keys}, "all in one answer"
        of_space = tab.states["space/flights"][0].state
        assert of_space["row"]["streams"] == 4
        assert tab.states["processes"][0].state == {"processes": [], "publishing": 0, "consuming": 0}
        assert [one["subscription"] for one in of_space["groups"]] == [str(SHARED)]
        await journal.write(journal.next_commit([Committed(offsets={"flights.0.2": 7})]))
        moved = await tab.sees(KEY, lambda seen: bool(seen["rows"]) and not seen["whole"])
        assert [row[0] for row in moved["rows"]] == ["flights.0.2"]
        assert len(tab.states["server"]) > 1
        assert len(tab.states["hosts"]) == 1, "there is still none, so nothing was sent of hosts"
        await client.create_space("calls", ["calls/#"])
        await tab.sees("spaces", lambda seen: "calls" in {one["name"] for one in seen["rows"]})
        assert sum(one.is_first for one in tab.states["spaces"]) == 1
        await client.groups.forget(SHARED)
        assert await tab.sees(KEY, lambda seen: "missing" in seen) == {"missing": True}
        assert (await tab.sees("groups", lambda seen: bool(seen["gone"])))["gone"] == [str(SHARED)]


async def test_an_answer_that_is_lost_is_made_anew_and_nothing_is_missed(
    client: Client, board: Board
) -> None:
    journal = await journal_of(client.redis, SHARED.id, 1)
    await journal.write(journal.next_commit([StreamsAdded(starts={f"flights.0.{n}": 0 for n in range(4)})]))
    async with console(board, client) as http:
        tab = Tab(http)
        await tab.follow(KEY)
        await tab.sees(KEY, lambda seen: len(seen["rows"]) == 4)
        rows = {row[0]: row for row in tab.states[KEY][-1].state["rows"]}
        for number in range(1, 9):
            await journal.write(journal.next_commit([Committed(offsets={f"flights.0.{number % 4}": number})]))
            await board.after(board.number + 1)
            await tab.post("poll", tab.machine.next_poll(20.0))  # its answer is lost on its way
        before = len(tab.states[KEY])
        async with asyncio.timeout(60):
            while {row[4] for row in rows.values()} != {5, 6, 7, 8}:
                await tab.poll()
                for event in tab.states[KEY][before:]:
                    assert not event.is_first
                    rows |= {row[0]: row for row in event.state["rows"]}
                before = len(tab.states[KEY])


async def test_at_a_console_that_began_anew_every_key_begins_anew(client: Client, board: Board) -> None:
    async with console(board, client) as http:
        tab = Tab(http)
        await tab.follow("server", "groups")
        await tab.sees("groups", lambda seen: seen["whole"])
    async with console(Board(client, 0.02), client) as http:
        tab.http, former, before = http, tab.machine.gateway, len(tab.states["groups"])
        answer = await tab.poll(60.0)
        assert (answer["gateway"] != former, answer["messages"]) == (True, []), "at once, whatever it waits"
        await tab.command()
        await tab.sees("groups", lambda _: len(tab.states["groups"]) > before)
        assert tab.states["groups"][before].is_first


async def test_who_leaves_a_key_gets_nothing_of_it_and_who_leaves_has_no_channel(
    client: Client, board: Board
) -> None:
    async with console(board, client) as http:
        tab = Tab(http)
        await tab.follow("server", "groups")
        await tab.sees("groups", lambda seen: seen["whole"])
        tab.machine.unsubscribe("groups")
        await tab.command()
        for number in range(3):
            await client.groups.declare(SharedSubscription.parse(f"$shared/g{number}/flights/#"), "earliest")
            await board.after(board.number + 1)
            assert {one["key"] for one in (await tab.poll())["messages"]} <= {"server"}
        former = tab.machine.gateway
        assert (await http.delete(tab.path)).status_code == 204
        assert (await tab.poll())["gateway"] != former


@pytest.mark.parametrize(
    ("what", "body", "said"),
    [
        (
            "commands",
            [{"command": 1, "subscribe": "nothing"}],
            "has no key 'nothing': it has server",
        ),
        ("commands", [{"command": 1, "subscribe": "group/"}], "has no key 'group/'"),
        ("commands", [{"command": 1}], 'give either "subscribe" or "unsubscribe"'),
        ("commands", [{"command": 0, "subscribe": "server"}], "0.command"),
        ("commands", [{"command": 2, "subscribe": "server"}, {"command": 2, "unsubscribe": "x"}], "upwards"),
        ("commands", [{"command": 1, "subscribe": "server", "policy": "lossy"}], "'state'"),
        ("commands", [{"command": 1, "subscribe": "server", "filter": "a/#"}], "filter"),
        ("commands", {"command": 1}, "a list of commands"),
        ("commands", [{"command": n, "subscribe": f"group/{n}"} for n in range(1, 34)], "at most 32 keys"),
        ("commands", [{"command": n, "unsubscribe": "a"} for n in range(1, 102)], "100"),
        ("poll", {"wait": 61}, "wait"),
        ("poll", {"processed": -1}, "processed"),
        ("poll", [], "a poll"),
    ],
)
async def test_what_is_no_request_of_a_channel_is_refused_whole(
    client: Client, board: Board, what: str, body: Any, said: str
) -> None:
    async with console(board, client) as http:
        tab = Tab(http)
        answer = await tab.post(what, body)
        assert (answer.status_code, said in answer.json()["error"]) == (400, True), answer.text
        assert (await tab.poll(0.0))["command"] == 0, "nothing of it was done"
        for bad in ("%2F", "a%2Fb", "x" * 201):
            assert (await http.post(f"/v1/channels/{bad}/poll", json={})).status_code in (400, 404)


async def test_what_was_never_sent_cannot_be_acknowledged(client: Client, board: Board) -> None:
    async with console(board, client) as http:
        tab = Tab(http)
        await tab.follow("server")
        await tab.poll()
        answer = await tab.post("poll", {"gateway": tab.machine.gateway, "processed": 99})
        assert (answer.status_code, "processed is 99" in answer.json()["error"]) == (400, True)


async def test_only_json_is_taken_so_that_no_other_page_can_send_it(client: Client, board: Board) -> None:
    async with console(board, client) as http:
        for what in ("commands", "poll"):
            answer = await http.post(
                f"/v1/channels/a/{what}", content=b"{}", headers={"content-type": "text/plain"}
            )
            assert answer.status_code == 415
        assert (await http.get("/v1/channels/a/poll")).status_code == 405


async def test_a_channel_ends_with_the_login_that_began_it(
    client: Client, board: Board, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    file.write_text(document(("ana", "token-of-ana", "observer"), ("ben", "token-of-ben", "observer")))
    async with console(board, client, Logins(file)) as http:
        assert (await Tab(http).post("poll", {})).status_code == 401
        tab = Tab(http, Authorization="Bearer token-of-ana")
        await tab.follow("groups")
        await tab.sees("groups", lambda seen: seen["whole"])
        other = Tab(http, Authorization="Bearer token-of-ben")
        assert (await other.poll(0.0))["gateway"] != tab.machine.gateway, "the name of a tab is nobody else's"
        waiting = asyncio.create_task(tab.post("poll", tab.machine.next_poll(60.0)))
        await asyncio.sleep(0)
        file.write_text(document(("cleo", "token-of-cleo", "admin")))
        await client.groups.declare(SharedSubscription.parse("$shared/new/flights/#"), "earliest")
        answer = await waiting
        assert (answer.status_code, "messages" in answer.json()) == (401, False)
        assert (await tab.post("poll", {})).status_code == 401


async def test_while_no_tab_polls_nothing_is_read_and_nothing_old_is_told(
    client: Client, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "LINGER_SECONDS", 0.01)
    async with console(board, client) as http:
        tab = Tab(http)
        await tab.follow("server", "groups")
        await tab.sees("groups", lambda seen: seen["whole"])
        await until(lambda: board.resting)
        number = board.number
        await client.groups.declare(SharedSubscription.parse("$shared/new/flights/#"), "earliest")
        answer = await tab.poll(0.0)
        assert [one for one in answer["messages"] if one["key"] == "groups"] == [], (
            "not what was before the rest"
        )
        said = await tab.sees("groups", lambda seen: not seen["whole"])
        assert [row["subscription"] for row in said["rows"]] == ["$shared/new/flights/#"]
        assert board.number > number
        await until(lambda: board.resting)


async def test_a_tab_that_is_gone_looks_no_more(
    client: Client, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is closed while it waits; the app is asked as a server asks it."""
    monkeypatch.setattr(boards, "LINGER_SECONDS", 0.01)
    app = make_app([Site("main", client, board)])
    body, gone = json.dumps({"wait": 60.0}).encode(), asyncio.Event()
    sent: list[MutableMapping[str, Any]] = []
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/v1/channels/tab/poll", "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }  # fmt: skip
    async with app.router.lifespan_context(app), asyncio.timeout(60):
        polling = asyncio.create_task(app(scope, receive, send))
        await board.after(board.number + 3)
        assert not polling.done()
        gone.set()
        await polling
        await until(lambda: board.resting)
        assert sent[0]["status"] == 204


async def test_tabs_are_bounded_and_the_dead_are_forgotten(client: Client, board: Board) -> None:
    limits = ChannelLimits(channels=3, client_channels=2, idle_seconds=60.0)
    tabs = TabChannels(board, limits)
    first = tabs.of("a", "ana", "ana")
    tabs.of("b", "ana", "ana")
    with pytest.raises(TooManyTabs, match="you have 2 open tabs"):
        tabs.of("c", "ana", "ana")
    tabs.of("a", "ben", "ben")
    with pytest.raises(TooManyTabs, match="the console has 3 open tabs"):
        tabs.of("a", "cleo", "cleo")
    tabs.forget_dead(first.poll.last_seen + 59)
    assert len(tabs) == 3
    tabs.forget_dead(first.poll.last_seen + 1000)
    assert (len(tabs), first.poll.is_closed) == (0, True)
    assert tabs.of("a", "ana", "ana").gateway != first.gateway
    assert TAB_LIMITS.keys == 32


def test_a_difference_that_many_want_is_made_once(board: Board) -> None:
    made: list[tuple[str | None, str]] = []

    def difference(before: str | None, now: str) -> dict[str, Any]:
        made.append((before, now))
        return {"now": now}

    source = BoardState(board, lambda _: "b", difference)
    told = [source.difference("a", "b") for _ in range(3)]
    assert (told, made) == ([b'{"now":"b"}'] * 3, [("a", "b")])
    assert source.difference(None, "b") == b'{"now":"b"}'
    assert made[1:] == [(None, "b")]
