"""``streamlease doctor`` and ``streamlease serve`` as processes."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import redis
from rq import Queue

from streamlease.admin.doctor.doctor import START_SECONDS
from streamlease.admin.redis.server_process import free_port
from streamlease.registry.keys import QUEUE
from tests.admin.command import Command, Process, finish, until
from tests.conftest import MakeServer

SUB = "$shared/g/flights/#"


def checks(command: Command) -> tuple[int, dict[str, dict[str, str]]]:
    outcome = command("doctor", "--json")
    assert outcome.err == ""
    document = outcome.document
    assert document["ok"] is (outcome.code == 0)
    return outcome.code, {check["check"]: check for check in document["checks"]}


# -- doctor --------------------------------------------------------------------------------------------------


def test_a_healthy_redis_without_persistence_is_warned_of(flights: Command) -> None:
    code, found = checks(flights)
    assert code == 0
    assert {check for check in found if found[check]["level"] == "warn"} == {
        "persistence",
        "memory",
        "privileges",
    }
    assert "appendonly" in found["persistence"]["remedy"]
    assert set(found) == {
        "server", "version", "eviction", "persistence", "memory", "round trip", "clock", "leader hosts",
        "spawn queue", "groups", "keys", "rights", "privileges", "streams", "epochs", "compaction",
        "terms", "retention", "fleets", "lag",
    }  # fmt: skip


def test_eviction_fails(flights: Command, store: redis.Redis) -> None:
    store.config_set("maxmemory-policy", "allkeys-lru")
    try:
        code, found = checks(flights)
        text = flights("doctor")
    finally:
        store.config_set("maxmemory-policy", "noeviction")
    assert (code, found["eviction"]["level"]) == (1, "fail")
    assert text.code == 1
    (line,) = [line for line in text.out.splitlines() if line.startswith("fail")]
    assert "allkeys-lru" in line
    assert line.endswith("run CONFIG SET maxmemory-policy noeviction")


def test_a_snapshot_counts_as_persistence(tmp_path: Path, make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    command = Command(tmp_path, server.url)
    with server.client() as store:
        until(lambda: store.info("server")["uptime_in_seconds"] > START_SECONDS)
        assert checks(command)[1]["persistence"]["level"] == "warn"
        until(lambda: store.save() and checks(command)[1]["persistence"]["level"] == "ok")


def test_a_redis_that_is_not_there_fails(command: Command) -> None:
    outcome = command("doctor", "--redis", f"redis://127.0.0.1:{free_port()}")
    assert (outcome.code, outcome.err) == (1, "")
    assert outcome.out.startswith("fail server: Redis at 127.0.0.1:")


def test_groups_without_a_leader_and_orphans_are_seen(flights: Command, store: redis.Redis) -> None:
    flights.ok("group", "declare", SUB)
    assert checks(flights)[1]["groups"]["level"] == "ok"
    flights.ok("publish", "flights/a", text="1\n")
    store.hset("sl:{g:gone/x}:leader", "term", 1)
    store.hset("sl:{gone.0.0}:meta", "next", 1)
    store.hset("sl:{g:!epochs-gone}:leader", "term", 1)
    before = store.dbsize()
    code, found = checks(flights)
    assert (code, found["groups"]["level"], found["keys"]["level"]) == (0, "warn", "warn")
    assert SUB in found["groups"]["message"]
    assert "sl:{g:gone/x}:leader" in found["keys"]["message"]
    assert "sl:{gone.0.0}:meta" in found["keys"]["message"]
    assert "sl:{g:!epochs-gone}:leader" in found["keys"]["message"]
    assert store.dbsize() == before


def test_what_hosts_claim_is_no_orphan(flights: Command, store: redis.Redis) -> None:
    for claim in ("retention", "compaction", "snapshots", "epochs-flights"):
        store.hset(f"sl:{{g:!{claim}}}:leader", "term", 1)
    found = checks(flights)[1]["keys"]
    assert (found["level"], found["message"].startswith("each belongs")) == ("ok", True)


def test_failed_and_waiting_spawn_jobs_are_counted(command: Command, store: redis.Redis) -> None:
    queue = Queue(QUEUE, connection=store)
    queue.enqueue("no.such.function")
    queue.failed_job_registry.add(queue.enqueue("no.such.function"), ttl=60)
    queue.remove(queue.job_ids[1])
    found = checks(command)[1]["spawn queue"]
    assert (found["level"], found["message"]) == ("warn", "1 job waits, 1 failed")


# -- serve ---------------------------------------------------------------------------------------------------


def probe(port: int, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())
    except OSError:
        return 0, {}


def start_host(command: Command, *words: str) -> tuple[Process, int]:
    port = free_port()
    process = command.start("serve", "--name", "tester", *words, STREAMLEASE_HTTP_PORT=str(port))
    until(lambda: probe(port, "/readyz")[0] == 200 or process.poll() is not None)
    assert process.poll() is None, command.log.read_text()
    return process, port


def test_a_host_answers_probes_leads_and_drains(flights: Command, store: redis.Redis) -> None:
    host, port = start_host(flights, "--log-format", "json")
    try:
        assert probe(port, "/healthz") == (200, {"live": True, "ready": True, "leaders": 0})
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert b"streamlease_leaders 0.0" in answer.read()
        assert probe(port, "/nothere")[0] == 404
        (listed,) = flights.ok("status", "--json").document["hosts"]
        assert (listed["name"], listed["pid"]) == ("tester", host.pid)
        flights.ok("publish", "flights/a", text="1\n2\n")
        flights.ok("consume", SUB, "--from", "earliest", "--count", "2")
        assert probe(port, "/readyz") == (200, {"live": True, "ready": True, "leaders": 1})
        assert flights.ok("group", "describe", SUB, "--json").document["leader"]["host"] == listed["host"]
        assert checks(flights)[1]["leader hosts"]["message"].startswith("1 alive")
        assert "tester" in flights.ok("status").out
        done = flights.ok("group", "step-down", SUB, "--timeout", "1", "--json").document
        assert (done["former"]["host"], done["leader"]) == (listed["host"], None)
    finally:
        assert finish(host).code == 0
    assert flights.ok("status", "--json").document["hosts"] == []
    logs = [json.loads(line) for line in flights.log.read_text().splitlines()]
    assert all(set(entry) - {"group", "term"} == {"time", "level", "logger", "message"} for entry in logs), (
        logs
    )
    led = [entry for entry in logs if entry["message"].startswith("leader of")]
    assert led
    assert all((entry["group"], entry["term"]) == ("g/flights/#", 1) for entry in led), led
    assert {entry["level"] for entry in logs} == {"info"}
    assert any("drains" in entry["message"] for entry in logs)
    assert list(store.scan_iter("sl:{m:*")) == []


def test_a_host_runs_nothing_but_its_own_function(
    flights: Command, store: redis.Redis, tmp_path: Path
) -> None:
    mark = tmp_path / "owned"
    host, port = start_host(flights)
    try:
        Queue(QUEUE, connection=store).enqueue("os.system", f"touch {mark}")
        flights.ok("publish", "flights/a", text="1\n")
        flights.ok("consume", SUB, "--from", "earliest", "--count", "1")
        assert probe(port, "/readyz") == (200, {"live": True, "ready": True, "leaders": 1})
        assert checks(flights)[1]["spawn queue"]["message"] == "0 jobs wait, 1 failed"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            assert b"streamlease_refused_jobs_total 1.0" in answer.read()
    finally:
        assert finish(host).code == 0
    assert not mark.exists()
    assert "is refused, nothing of it was run" in flights.log.read_text()


def test_a_second_host_on_one_port_says_so_in_one_line(command: Command) -> None:
    host, port = start_host(command)
    try:
        second = command("serve", "--http-port", str(port))
        assert second.code == 2
        assert second.err.count("\n") == 1
        assert f"cannot listen on 127.0.0.1:{port}" in second.err
        assert "--http-port" in second.err
    finally:
        assert finish(host, signal.SIGINT).code == 0
    assert "INFO" in command.log.read_text()


def test_the_embedded_redis_is_not_warned_of_for_its_only_user(tmp_path: Path) -> None:
    """A warning that everybody sees in a fresh installation is one that nobody reads."""
    command = Command(tmp_path)
    command.ok("redis", "start")
    try:
        code, found = checks(command)
    finally:
        command.ok("redis", "stop")
    assert (code, found["privileges"]["level"]) == (0, "ok")
    assert found["privileges"]["message"] == (
        f"the embedded Redis has one user, who may do everything: "
        f"whoever may read {tmp_path / 'streamlease' / 'redis'}"
    )
    assert not [check for check in found.values() if check["level"] == "warn"]
