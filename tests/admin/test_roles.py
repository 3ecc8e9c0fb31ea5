"""The roles of ``admin/doctor/roles.py`` on real servers: each does its whole job, and nothing else."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import redis

import streamlease
from streamlease.admin.doctor.roles import ADMIN, CLIENT, EXECUTOR, HOST, NEWER, OBSERVER, ROLES, Role
from streamlease.admin.redis.server_process import free_port
from streamlease.admin.ui.board import Board
from streamlease.protocol.group_options import GroupOptions
from streamlease.registry.keys import QUEUE, WAITING_JOBS
from tests.admin.command import Command, InProcess, finish, lines_of, until
from tests.admin.test_doctor_and_serve import probe
from tests.conftest import MakeServer
from tests.mqtt.bridges import Bridges
from tests.mqtt.broker import Broker
from tests.servers import RedisServer

ROOT = Path(__file__).parent.parent.parent
SUB = "$shared/g/flights/#"
ALWAYS = {"auth", "hello", "quit", "reset"}
"""What Redis lets every connection do, whatever its user may."""

FORBIDDEN: list[tuple[str, ...]] = [
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("SWAPDB", "0", "1"),
    ("CONFIG", "GET", "requirepass"),
    ("CONFIG", "GET", "masterauth"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("SCRIPT", "FLUSH"),
    ("FUNCTION", "FLUSH"),
    ("EVAL", "return 1", "0"),
    ("MIGRATE", "127.0.0.1", "1", "sl:x", "0", "1"),
    ("KEYS", "*"),
    ("DUMP", "sl:x"),
    ("SHUTDOWN", "NOSAVE"),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("ACL", "LIST"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("CLIENT", "LIST"),
    ("MONITOR",),
    ("GET", "theirs"),
    ("SET", "theirs", "x"),
    ("PUBLISH", "theirs", "x"),
    ("SUBSCRIBE", "rq:pubsub:w"),
    ("RPUSH", "rq:queue:default", "x"),
    ("HSET", "rq:job:theirs", "data", "x"),
]


@pytest.fixture(params=["embedded", "redis7"])
def server(request: pytest.FixtureRequest, make_redis_server: MakeServer) -> RedisServer:
    """A server with a user for each role, and with passwords of its own."""
    made = make_redis_server(request.param, persistent=True, settings={"masterauth": "secret"})
    with made.client() as client:
        for role in ROLES.values():
            set_user(client, role)
    return made


def set_user(client: redis.Redis, role: Role) -> None:
    """As the docs say, on a server that may not know the newest commands."""
    words = role.line().split()[2:]
    unknown = NEWER.keys() - commands_of(client).keys()
    left = [word for word in words if word[1:] not in unknown]
    client.execute_command("ACL", "SETUSER", *left)  # type: ignore[no-untyped-call]


def as_user(server: RedisServer, role: Role) -> str:
    return server.url.replace("//", f"//{role.name}:PASSWORD@")


# -- nothing else --------------------------------------------------------------------------------------------


def commands_of(client: redis.Redis) -> dict[str, int]:
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command("COMMAND")
        found: dict[str, int] = {}
        for name, arity, *rest in connection.read_response():
            below = rest[-1] if rest and isinstance(rest[-1], list) else []
            for sub in below:
                found[sub[0].decode()] = abs(sub[1])
            if not below:
                found[name.decode()] = abs(arity)
        return found
    finally:
        client.connection_pool.release(connection)


@pytest.mark.parametrize("role", ROLES.values(), ids=list(ROLES))
def test_a_role_may_run_the_commands_of_the_table_and_no_other(server: RedisServer, role: Role) -> None:
    with server.client() as client:
        allowed = set()
        known = commands_of(client)
        for name, words in known.items():
            command = [*name.split("|"), *["1"] * 9][: max(words, 1)]
            said = str(client.execute_command("ACL", "DRYRUN", role.name, *command))  # type: ignore[no-untyped-call]
            if "permissions to run" not in said:
                allowed.add(name)
    assert allowed - ALWAYS == role.commands & known.keys()
    assert role.commands - known.keys() <= NEWER.keys()


@pytest.mark.parametrize("role", ROLES.values(), ids=list(ROLES))
def test_what_reaches_beyond_streamlease_is_refused(server: RedisServer, role: Role) -> None:
    for command in FORBIDDEN:
        with (
            redis.Redis.from_url(as_user(server, role)) as client,
            pytest.raises(redis.exceptions.NoPermissionError),
        ):
            client.execute_command(*command)  # type: ignore[no-untyped-call]
    script = "return redis.call('FLUSHALL')"
    with redis.Redis.from_url(as_user(server, role)) as client:
        digest = client.script_load(script)
        with pytest.raises(redis.ResponseError, match=r"(?i)acl|permission|can.t run this command"):
            client.evalsha(digest, 0)


@pytest.mark.parametrize("role", [CLIENT, OBSERVER, ADMIN], ids=lambda role: role.name)
def test_only_a_host_writes_the_queue(server: RedisServer, role: Role) -> None:
    with redis.Redis.from_url(as_user(server, role)) as client:
        for command in (
            ("HSET", f"rq:job:streamlease-leader-{0:032x}-1-1", "data", "x"),
            ("RPUSH", WAITING_JOBS, "x"),
            ("SET", WAITING_JOBS, "x"),
            ("UNLINK", WAITING_JOBS),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)  # type: ignore[no-untyped-call]
        if role is not CLIENT:
            assert client.llen(f"rq:queue:{QUEUE}") == 0
        else:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.zcard(f"rq:failed:{QUEUE}")


def test_an_observer_writes_nothing(server: RedisServer) -> None:
    writing = CLIENT.commands - OBSERVER.commands
    assert {"set", "xadd", "hset", "del", "unlink", "publish"} <= writing
    with redis.Redis.from_url(as_user(server, OBSERVER)) as client:
        digest = client.script_load("return redis.call('SET', KEYS[1], 'x')")
        with pytest.raises(redis.ResponseError, match=r"(?i)acl|permission|can.t run this command"):
            client.evalsha(digest, 1, "sl:x")


# -- the whole job -------------------------------------------------------------------------------------------


async def use(url: str, **more: Any) -> None:
    """What a program does: it publishes, consumes, fails a message, leaves, comes back and reads history."""
    async with streamlease.connect(url) as client:
        async with client.publisher() as publisher:
            for number in range(10):
                await publisher.send("flights/a", b"%d" % number)
        options = GroupOptions(max_failures=1)
        seen: list[bytes] = []
        async with client.subscribe(SUB, start="earliest", options=options) as sub:
            async for batch in sub:
                seen += [message.payload for message in batch.messages]
                if len(seen) >= 10:
                    assert await batch.fail(batch.messages[-1].offset, ValueError("bad")) == "passed"
                    break
                await batch.commit()
        assert sorted(seen)[:10] == [b"%d" % number for number in range(10)]
        async with client.listen("flights/#", start="earliest") as listening:
            async for one in listening:
                assert len(one) > 0
                break


@pytest.fixture
def admin(server: RedisServer, tmp_path: Path) -> InProcess:
    """The command as an operator, with a space."""
    command = InProcess(tmp_path, as_user(server, ADMIN))
    words = ("space", "create", "flights", "--topics", "flights/#", "--streams", "2")
    with server.client() as client:
        fsync = "waitaof" in commands_of(client)
    command.ok(*words, *(("--durability", "fsync") if fsync else ()))
    return command


def refusals(server: RedisServer) -> list[str]:
    """What was refused to the users of the roles, as the server noted it."""
    with server.client() as client:
        found = client.acl_log()
        client.acl_log_reset()
        return [f"{one['username']}: {one['object']} ({one['context']})" for one in found]


async def test_a_client_does_its_whole_job_and_leads_by_itself(server: RedisServer, admin: InProcess) -> None:
    await use(as_user(server, CLIENT))
    assert refusals(server) == []


def test_a_host_leads_for_clients_that_have_no_right_to_the_queue(
    server: RedisServer, admin: InProcess, tmp_path: Path
) -> None:
    host, client = Command(tmp_path, as_user(server, HOST)), Command(tmp_path, as_user(server, CLIENT))
    port = free_port()
    process = host.start("serve", "--name", "roles", "--http-port", str(port))
    try:
        until(lambda: probe(port, "/readyz")[0] == 200)
        client.ok("publish", "flights/a", text="1\n2\n")
        client.ok("consume", SUB, "--from", "earliest", "--count", "2")
        with server.client() as store:
            until(lambda: not store.keys("rq:job:*"))
        assert probe(port, "/readyz")[1]["leaders"] == 1
    finally:
        assert finish(process).code == 0
    assert refusals(server) == []
    assert "refused" not in host.log.read_text()


def test_an_admin_does_every_act_and_an_observer_sees_every_view(
    server: RedisServer, admin: InProcess, tmp_path: Path
) -> None:
    observer = InProcess(tmp_path, as_user(server, OBSERVER))
    admin.ok("group", "declare", SUB, "--from", "earliest")
    for words in (
        ["group", "alter", SUB, "--max-failures", "2"],
        ["group", "pause", SUB],
        ["group", "describe", SUB],
        ["group", "resume", SUB],
        ["group", "rebalance", SUB],
        ["group", "reset", SUB, "--to", "earliest", "--execute"],
        ["space", "alter", "flights", "--streams", "4"],
        ["status"],
        ["group", "history", SUB],
        ["doctor", "--role", "admin"],
    ):
        done = admin(*words)
        assert (done.code, done.err) == (0, ""), (words, done)
    for words in (
        ["group", "list"],
        ["group", "describe", SUB],
        ["space", "show", "flights"],
        ["status"],
        ["doctor", "--role", "observer"],
    ):
        done = observer(*words)
        assert (done.code, done.err) == (0, ""), (words, done)
    for words in (["group", "delete", SUB, "--yes"], ["space", "seal", "flights", "--yes"]):
        done = admin(*words)
        assert (done.code, done.err) == (0, ""), (words, done)
    done = admin("space", "delete", "flights", "--yes")
    assert (done.code, done.err) == (0, ""), done
    told = [one for one in refusals(server) if not one.startswith("observer: ")]
    assert told == []


def test_an_executor_runs_what_an_admin_submits(
    server: RedisServer, admin: InProcess, tmp_path: Path
) -> None:
    key = {"STREAMLEASE_SUBMIT_KEY": "a key of tests, 0123456789"}
    command = Command(tmp_path, as_user(server, EXECUTOR))
    program = tmp_path / "job.py"
    program.write_text(
        "import asyncio, os, streamlease\n"
        "query = streamlease.queries.join()\n"
        "async def main():\n"
        "    async with streamlease.connect() as client, client.publisher() as publisher:\n"
        "        print(await publisher.send('flights/a', query.redis.split(':')[1].encode()))\n"
        "asyncio.run(main())\n"
    )
    programs = {"STREAMLEASE_PROGRAM_REDIS_URL": as_user(server, CLIENT)}
    process = command.start("executor", "--name", "one", "--ports", "29000-29001", **key, **programs)
    try:
        until(lambda: "one" in admin.ok("catalog", "executors", "--json").out)
        for words in (("--workers", "2", "--restart"), ()):
            done = admin("submit", str(program), *words, "--wait", "--json", **key)
            assert done.code == 0, (done, command.log.read_text())
        admin.ok("query", "logs", done.document["query"])
        again = admin.ok("query", "terminate", done.document["query"], "--json").document
        assert again["outcome"] == "done"
        assert admin.ok("query", "list", "--json").document["queries"][-1] == again
        messages = admin.ok("consume", "flights/#", "--from", "earliest", "--count", "3", "--json")
        assert {one["payload"] for one in messages.documents} == {"//client"}
    finally:
        assert finish(process).code == 0
    assert refusals(server) == []
    refused = Command(tmp_path, as_user(server, CLIENT))("submit", str(program), **key)
    assert refused.code == 1
    assert "there is no executor" in refused.err


@pytest.mark.parametrize("role", [EXECUTOR, ADMIN], ids=lambda role: role.name)
def test_doctor_knows_the_queues_of_executors(server: RedisServer, role: Role, tmp_path: Path) -> None:
    command = InProcess(tmp_path, as_user(server, role))
    found = command.ok("doctor", "--role", role.name, "--json").document["checks"]
    told = {one["check"]: one["level"] for one in found}
    assert (told["rights"], told["privileges"]) == ("ok", "ok"), found


def test_a_client_serves_a_gateway_and_a_bridge(
    server: RedisServer, admin: InProcess, tmp_path: Path
) -> None:
    command = Command(tmp_path, as_user(server, CLIENT))
    gateway = command.start("gateway", "--port", "0")
    try:
        (said,) = lines_of(gateway, 1)
        url = said.removeprefix("the gateway is at ")
        for _ in range(2):
            request = urllib.request.Request(f"{url}v1/topics/flights/a", b"x", {"idempotency-key": "1"})
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert answer.status == 201
        with urllib.request.urlopen(f"{url}v1/messages?filter=flights/a&since=earliest&wait=9") as answer:
            assert len(json.load(answer)["messages"]) == 1
        serve_a_member(f"{url}v1/groups/g/members")
    finally:
        assert finish(gateway).code == 0
    broker, bridges = Broker(tmp_path / "broker").start(), Bridges(tmp_path, as_user(server, CLIENT))
    try:
        into = bridges.start(broker.url, "--filter", "flights/#", "--client-id", "in")
        group = ("--out", "$shared/out/flights/#", "--from", "earliest")
        out = bridges.start(broker.url, *group, "--client-id", "out")
        with broker.client() as client:
            client.publish("flights/b", b"y")
        until(lambda: into.count("brought_total") == 1)
        until(lambda: out.count("sent_total") == 1)
        until(lambda: into.ready() and out.ready())
        assert (into.end(), out.end()) == (0, 0)
    finally:
        bridges.end()
        broker.stop()
    assert refusals(server) == []


def serve_a_member(url: str) -> None:
    def asked(method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, data, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read() or b"null")

    member = asked("POST", "", {"filter": "flights/a", "start": "earliest"})["member"]
    (message,) = asked("GET", f"/{member}/messages?wait=9")["messages"]
    done = {message["stream"]: message["offset"] + 1}
    assert asked("POST", f"/{member}/commit", {"offsets": done}) == {"committed": done}
    asked("DELETE", f"/{member}")


async def test_an_observer_serves_the_page(server: RedisServer, admin: InProcess) -> None:
    await asyncio.to_thread(admin.ok, "group", "declare", SUB, "--from", "earliest")
    async with streamlease.connect(as_user(server, OBSERVER), embedded=False) as client:
        board = Board(client)
        await board._look()
        assert list(board.groups) == [SUB]
    assert refusals(server) == []


# -- the table -----------------------------------------------------------------------------------------------

NOT_CLIENTS = {
    ("streams/redis/durability.py", "config|get"),  # before Redis 7.2 only: docs/redis.md says what it costs
    ("streams/spaces/altering.py", "scan"),  # deletes a damaged space: an operator's act
}


def sent() -> set[tuple[str, str]]:
    """The commands, in lower case, that files send by name, and those that scripts call."""
    found: set[tuple[str, str]] = set()
    for room in (
        "streams",
        "registry",
        "leader",
        "agent",
        "borrower",
        "spark",
        "catalog",
        "queries",
        "executor",
    ):
        for path in (ROOT / room).rglob("*.*"):
            name = str(path.relative_to(ROOT))
            if path.suffix == ".lua":
                called = re.findall(r"redis\.p?call\(['\"](\w+)['\"]", path.read_text())
                found |= {(name, word.lower()) for word in called}
            elif path.suffix == ".py" and path.name not in ("rights.py", "roles.py"):
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.Tuple) and node.elts:
                        words = [one.value for one in node.elts[:2] if isinstance(one, ast.Constant)]
                        if words and isinstance(words[0], str) and words[0].isupper():
                            found.add((name, " ".join(str(word) for word in words).lower()))
    return found


def test_a_client_may_send_all_that_the_code_sends(embedded_redis_url: str) -> None:
    with redis.Redis.from_url(embedded_redis_url) as client:
        known = commands_of(client).keys()
    asked = 0
    for path, text in sorted(sent()):
        first, _, second = text.partition(" ")
        command = next((name for name in (f"{first}|{second}", first) if name in known), None)
        if command is not None and (path, command) not in NOT_CLIENTS:
            asked += 1
            assert command in CLIENT.commands, (path, text)
    assert asked > 60


def test_the_docs_have_the_lines_of_the_table() -> None:
    text = (ROOT / "docs" / "redis.md").read_text()
    for role in ROLES.values():
        assert role.line() in text.splitlines(), "run: .venv/bin/python scripts/rights.py"
