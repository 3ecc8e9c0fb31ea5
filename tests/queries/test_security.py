"""Who can write to Redis, but has not the submit key: nothing is run, and it is logged who it was."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from streamlease.queries.core.signed_orders import Order, sign
from streamlease.registry.spawn import put_job, queue_client
from streamlease.registry.spawn_jobs import SpawnWorkers, executor_queue
from streamlease.streams.catalog.keys import TOKENS
from tests.admin.command import until
from tests.queries.executors import KEY, Executors, alive

pytestmark = pytest.mark.cluster

NOTES = """
import os, streamlease
query = streamlease.queries.join()
with open(os.environ["HOME"] + "/ran", "a") as ran:
    ran.write(query.id + "\\n")
"""


class Attacker:
    """Writes whatever it likes into Redis."""

    def __init__(self, executors: Executors) -> None:
        assert executors.command.url is not None
        self.executors = executors
        self.url = executors.command.url
        self.redis = redis.Redis.from_url(self.url)
        self.put = 0

    def heard(self) -> list[str]:
        """The orders that were put into queues, as anybody sees them in Redis."""
        found = []
        for key in self.redis.scan_iter("rq:job:streamlease-spawn-*"):
            assert self.redis.hget(key, "data")
            found.append(key.decode())
        return found

    def order(self, text: str, signature: str, executor: str = "one") -> None:
        """Put an order into an executor's queue."""
        self.put += 1
        with queue_client(self.url) as queue:
            id = f"{SpawnWorkers.id_prefix}{self.put:032x}-0-0"
            assert put_job(queue, executor_queue(executor), SpawnWorkers(text, signature), id)

    def log(self, executor: str = "one") -> str:
        return self.executors.log(executor).read_text()


@pytest.fixture
def attacker(executors: Executors) -> Iterator[Attacker]:
    executors.command.environment["HOME"] = str(executors.folder)
    executors.start("one", lease="4s")
    found = Attacker(executors)
    yield found
    found.redis.close()


def ran(executors: Executors) -> list[str]:
    file = executors.folder / "ran"
    return file.read_text().split() if file.exists() else []


def sent_order(attacker: Attacker) -> tuple[str, str]:
    """An order that an executor has taken, out of the job that RQ keeps."""
    import zlib

    (key,) = attacker.heard()
    data = attacker.redis.hget(key, "data")
    assert data is not None
    _, _, (text, signature), _ = json.loads(zlib.decompress(data))
    return text, signature


def test_an_order_is_run_once_for_its_query_in_its_time_and_only_if_it_is_signed(
    attacker: Attacker, executors: Executors
) -> None:
    done = executors.command("submit", "--wait", "--json", executors.program(NOTES))
    query = done.document["query"]
    assert ran(executors) == [query]
    text, signature = sent_order(attacker)
    record = attacker.redis.hget("sl:{catalog}:queries:ended", query)
    assert record is not None
    fields = json.loads(record.partition(b" ")[2])
    fields |= {"state": "spawning", "outcome": None, "ended_at": None}
    fields["workers"][0] |= {"pid": None, "over": False, "exit": None}
    forged = b"1 " + json.dumps(fields).encode()
    attacker.redis.hdel("sl:{catalog}:queries:ended", query)
    attacker.redis.hset("sl:{catalog}:queries:live", query, forged)
    order = json.loads(text)
    other = json.dumps({**order, "query": "0" * 16}, separators=(",", ":"), sort_keys=True)
    late = Order.model_validate({**order, "until": 1}, strict=False).text
    foreign = Order.model_validate({**order, "life": "x"}, strict=False).text
    for words, mark, says in (
        (text, signature, "the order was taken already"),
        (other, signature, "not signed with this submit key"),
        (text, sign(b"a key of somebody else", "order", text), "not signed with this submit key"),
        (late, sign(KEY.encode(), "order", late), "the order's time was over"),
        (foreign, sign(KEY.encode(), "order", foreign), "for another executor, or for an earlier life"),
        ("no order", "", "it cannot be read"),
    ):
        before = attacker.log().count("is refused")
        attacker.order(words, mark)
        until(lambda before=before: attacker.log().count("is refused") > before)
        line = attacker.log().splitlines()[-1]
        assert says in line, line
        assert words == "no order" or "submitted by " in line
    assert ran(executors) == [query], "nothing of it was run"


def test_a_forged_record_is_not_placed(attacker: Attacker, executors: Executors) -> None:
    done = executors.command("submit", "--restart", "--wait", "--json", executors.program(NOTES))
    query = done.document["query"]
    value = attacker.redis.hget("sl:{catalog}:queries:ended", query)
    assert value is not None
    record = json.loads(value.partition(b" ")[2])
    fresh = {"state": "placing", "workers": [], "outcome": None, "ended_at": None, "spawn_until": 0}
    evil = json.loads(record["job"]) | {"arguments": ["evil"]}
    for id, changes in (
        ("0" * 16, {}),
        (f"{query}.2", {"former": query}),
        (f"{query}.3", {"former": f"{query}.2", "job": json.dumps(evil)}),
    ):
        forged = record | fresh | {"query": id, "submitted_at": 0} | changes
        attacker.redis.hset("sl:{catalog}:queries:live", id, b"1 " + json.dumps(forged).encode())
    attacker.redis.publish("sl:{catalog}:queries:told", "x")
    until(lambda: attacker.log().count(" is not placed: ") >= 3)
    assert ran(executors) == [query]
    for id in ("0" * 16, f"{query}.2", f"{query}.3"):
        assert executors.until(id, "ended")["outcome"] == "aborted"
    assert "submitted it" in attacker.log()


def test_a_living_query_is_run_by_no_record_that_somebody_has_made(
    attacker: Attacker, executors: Executors
) -> None:
    """With the permit and the signed job of a query that lives, and records as it likes."""
    program = executors.program(NOTES + "import time\ntime.sleep(600)\n")
    query = executors.submit("--restart", program)
    pid = executors.until(query, "running")["workers"][0]["pid"]
    until(lambda: ran(executors) == [query])
    value = attacker.redis.hget("sl:{catalog}:queries:live", query)
    assert value is not None
    record = json.loads(value.partition(b" ")[2])
    fresh = {"state": "placing", "workers": [], "spawn_until": 0, "submitted_at": 0}

    def refused(id: str, **changes: object) -> str:
        """Write a record that wants to be placed; what the executor says."""
        forged = record | fresh | {"query": id, **changes}
        attacker.redis.hset("sl:{catalog}:queries:live", id, b"7 " + json.dumps(forged).encode())
        attacker.redis.publish("sl:{catalog}:queries:told", "x")
        assert executors.until(id, "ended")["outcome"] == "aborted"
        until(lambda: f"query {id} is not placed: " in attacker.log())
        (line,) = [one for one in attacker.log().splitlines() if f"query {id} is not placed: " in one]
        assert line.endswith(f"{record['who']} submitted it")
        return line

    assert f"query {query} has not ended as lost" in refused(f"{query}.2", former=query)
    assert alive(pid) and executors.state(query) == "running"
    assert "it was placed already, and its record was put back" in refused(query)
    until(lambda: not alive(pid))
    assert ran(executors) == [query], "and it never ran twice"


def test_a_file_that_was_altered_is_not_run_and_is_right_again_with_the_next_submit(
    attacker: Attacker, executors: Executors
) -> None:
    program = executors.program(NOTES)
    executor = executors.processes["one"]
    executor.send_signal(signal.SIGSTOP)
    query = executors.submit(program)
    (key,) = attacker.redis.scan_iter("sl:{f:*")
    attacker.redis.hset(key, "0", b"import os; os.system('touch $HOME/evil')")
    executor.send_signal(signal.SIGCONT)
    ended = executors.until(query, "ended")
    assert ended["outcome"] == "aborted"
    said = "the file job.py in Redis is not the one that was signed"
    assert said in ended["reason"]
    (line,) = [one for one in attacker.log().splitlines() if said in one and "is not started" in one]
    assert f"worker 0 of query {query} is not started" in line
    assert line.endswith(f"{ended['who']} submitted it")
    assert executors.command("submit", "--wait", program).code == 0
    assert not (executors.folder / "evil").exists()
    assert len(ran(executors)) == 1


def test_the_token_of_another_query_is_refused_and_logged(attacker: Attacker, executors: Executors) -> None:
    executors.command.ok("space", "create", "flights", "--topics", "flights/#")
    waits = executors.program("import streamlease, time; streamlease.queries.join(); time.sleep(600)", "w.py")
    victim = executors.submit(waits)
    pid = executors.until(victim, "running")["workers"][0]["pid"]
    program = executors.program(
        "import asyncio, os, sys, streamlease\n"
        "os.environ['STREAMLEASE_QUERY_ID'] = sys.argv[1]\n"
        "async def main():\n"
        "    async with streamlease.connect() as client, client.publisher() as publisher:\n"
        "        await publisher.send('flights/a', b'x')\n"
        "        await client.shown._rows.settled()\n"
        "try: streamlease.queries.join()\n"
        "except streamlease.errors.QueryRefused as error: print(error, flush=True)\n"
        "try: asyncio.run(main())\n"
        "except streamlease.errors.QueryRefused as error: print(error, flush=True)\n"
    )
    done = executors.command("submit", "--wait", "--json", program, "--", victim)
    lines = executors.output(done.document["query"]).splitlines()
    assert f"this is not the token of query {victim}: only its own programs have it" in lines
    assert any(f"says that it is of query {victim}, and has not its token" in one for one in lines), lines
    assert executors.items("publications") == []
    until(lambda: attacker.log().count(f"not that of query {victim} was used by pid ") >= 2)
    assert alive(pid)
    assert executors.state(victim) == "running"
    token = attacker.redis.hget(TOKENS, victim)
    assert token is not None and len(token) == 40


def test_names_of_files_and_keys(executors: Executors, tmp_path: Path) -> None:
    for name in (".hidden", "a\nb"):
        (tmp_path / name).touch()
        assert "a file cannot be called" in executors.refused("submit", str(tmp_path / name)).err
    short = executors.command("executor", STREAMLEASE_SUBMIT_KEY="short")
    assert short.err == (
        "error: the submit key has 5 characters: use at least 16 random ones, for whoever knows it can run "
        "programs\n"
    )
    assert "there is no submit key" in executors.command("executor", STREAMLEASE_SUBMIT_KEY="").err
    passed = executors.command("executor", "--pass", "STREAMLEASE_SUBMIT_KEY")
    assert "programs get no variables of the executor" in passed.err
