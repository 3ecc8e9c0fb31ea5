"""The worker that takes spawn jobs: it runs its own one function, and outlives all else that comes."""

from __future__ import annotations

import json
import logging
import os
import pickle
import queue as threads
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Callback, Queue, Repeat, Retry
from rq.command import send_shutdown_command
from rq.job import Dependency, Job
from rq.serializers import JSONSerializer
from rq.suspension import suspend
from rq.webhook import Webhook

from streamlease.hosts import jobs as jobs_room
from streamlease.hosts.jobs import HostWorker, SpawnJobs, SpawnQueue, read_job
from streamlease.leader.metrics import REFUSED_JOBS
from streamlease.registry.keys import FAILED_JOBS, QUEUE, WAITING_JOBS
from streamlease.registry.leadership import NOBODY
from streamlease.registry.spawn import _spawn
from streamlease.registry.spawn_jobs import JobRefused, LeadGroup, SpawnJob
from streamlease.streams.redis.connection import connect_blocking

GROUP = "g/a"
JOB = LeadGroup.kind
JOB_ID = LeadGroup.id_prefix


@pytest.fixture
def client(real_redis_url: str) -> Iterator[redis.Redis]:
    client = connect_blocking(real_redis_url)
    assert isinstance(client, redis.Redis)
    yield client
    client.close()


class Host:
    """A worker, and the groups that it was asked to lead."""

    def __init__(self, client: redis.Redis) -> None:
        self._asked: threads.Queue[SpawnJob] = threads.Queue()
        self.jobs = SpawnJobs(client, "h", self._asked.put)

    def asked(self) -> SpawnJob:
        return self._asked.get(timeout=60)

    @property
    def quiet(self) -> bool:
        return self._asked.empty()


@pytest.fixture
def host(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(jobs_room, "AGAIN_SECONDS", 0.01)
    host = Host(client)
    host.jobs.start()
    yield host
    end(host.jobs)


def end(jobs: SpawnJobs) -> None:
    jobs.stop()
    jobs.join(20)
    assert not jobs._thread.is_alive()


def ask(client: redis.Redis, group: str = "g/last") -> None:
    """A proper job: once it is done, so is all that was in the queue before it."""
    assert _spawn(client, group, NOBODY, 0)


class Theirs:
    """What an attacker has: RQ as it is, with its pickled jobs, on the queue of the hosts."""

    def __init__(self, client: redis.Redis, mark: Path) -> None:
        self.mark = mark
        self.client = client
        self.pickled = Queue(QUEUE, connection=client)
        self.json = Queue(QUEUE, connection=client, serializer=JSONSerializer)

    @property
    def command(self) -> str:
        return f"touch {self.mark}"

    def raw(self, id: str, **fields: Any) -> None:
        """A job as its hash says, however it came about."""
        usual = {"data": zlib.compress(json.dumps([JOB, None, [GROUP, 0], {}]).encode()), "origin": QUEUE}
        self.client.hset(f"rq:job:{id}", mapping={**usual, **fields})  # type: ignore[arg-type]
        self.client.rpush(f"rq:queue:{QUEUE}", id)


class Explosive:
    """Runs a command as it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def mine(number: int) -> str:
    return f"{JOB_ID}{number:032x}-1-1"


def call(*args: Any, name: str = JOB, instance: Any = None, **kwargs: Any) -> bytes:
    return zlib.compress(json.dumps([name, instance, args, kwargs]).encode())


def explode(theirs: Theirs) -> bytes:
    return pickle.dumps(Explosive(theirs.command))


Attack = Callable[[Theirs], object]
ATTACKS: dict[str, Attack] = {
    "a function": lambda t: t.pickled.enqueue_call("os.system", (t.command,)),
    "a function, as JSON": lambda t: t.json.enqueue_call("os.system", (t.command,)),
    "a function under a good id": lambda t: t.json.enqueue_call("os.system", (t.command,), job_id=mine(1)),
    "a pickle as data": lambda t: t.raw(mine(2), data=zlib.compress(explode(t))),
    "a pickle as data, not packed": lambda t: t.raw(mine(3), data=explode(t)),
    "a pickle as meta": lambda t: t.raw(mine(4), meta=explode(t)),
    "a pickle as result": lambda t: t.raw(mine(5), result=explode(t)),
    "a pickle as an argument": lambda t: t.pickled.enqueue_call(JOB, (Explosive(t.command),), job_id=mine(6)),
    "an unknown kind": lambda t: t.raw(mine(29), data=call(GROUP, 0, name="streamlease.keep")),
    "a kind that is no text": lambda t: t.raw(mine(30), data=call(GROUP, 0, name=[JOB])),  # type: ignore[arg-type]
    "a method": lambda t: t.raw(mine(7), data=call(t.command, name="system", instance="os")),
    "an instance": lambda t: t.raw(mine(8), data=call(GROUP, 0, instance={})),
    "a callback of success": lambda t: t.json.enqueue_call(
        JOB, (GROUP, 0), job_id=mine(9), on_success=Callback("os.system")
    ),
    "a callback of failure": lambda t: t.json.enqueue_call(
        JOB, (GROUP, -1), job_id=mine(10), on_failure=Callback("os.system")
    ),
    "a callback of a stop": lambda t: t.json.enqueue_call(
        JOB, (GROUP, 0), job_id=mine(11), on_stopped=Callback("os.system")
    ),
    "a webhook": lambda t: t.json.enqueue_call(
        JOB, (GROUP, 0), job_id=mine(12), webhooks=[Webhook("http://127.0.0.1:9/", "finished")]
    ),
    "a repetition": lambda t: t.json.enqueue_call(JOB, (GROUP, 0), job_id=mine(13), repeat=Repeat(times=9)),
    "retries": lambda t: t.json.enqueue_call(JOB, (GROUP, 0), job_id=mine(14), retry=Retry(max=9)),
    "meta": lambda t: t.json.enqueue_call(JOB, (GROUP, 0), job_id=mine(15), meta={"a": 1}),
    "a dependency": lambda t: t.raw(mine(16), dependency_ids=json.dumps([mine(1)])),
    "a group of jobs": lambda t: t.raw(mine(17), group_id="x"),
    "another queue": lambda t: t.raw(mine(18), origin="default"),
    "another id": lambda t: t.raw("somebody-s-job"),
    "an id that is no text": lambda t: t.client.rpush(f"rq:queue:{QUEUE}", b"\xff\xfe"),
    "an id with a colon": lambda t: t.client.rpush(f"rq:queue:{QUEUE}", f"{JOB_ID}:a:b"),
    "a key that is no hash": lambda t: (
        t.client.set(f"rq:job:{mine(19)}", "x"),
        t.client.rpush(f"rq:queue:{QUEUE}", mine(19)),
    ),
    "no data": lambda t: t.raw(mine(20), data=b""),
    "a bomb": lambda t: t.raw(mine(21), data=zlib.compress(b" " * 50_000_000)),
    "deep nesting": lambda t: t.raw(mine(22), data=zlib.compress(b"[" * 200_000)),
    "too few arguments": lambda t: t.raw(mine(23), data=call(GROUP)),
    "too many arguments": lambda t: t.raw(mine(24), data=call(GROUP, 0, 0)),
    "arguments by name": lambda t: t.raw(mine(25), data=call(group=GROUP, above=0)),
    "a term that is no number": lambda t: t.raw(mine(26), data=call(GROUP, True)),
    "a term beyond all": lambda t: t.raw(mine(27), data=call(GROUP, 2**70)),
    "a group that is none": lambda t: t.raw(mine(28), data=call("nothing", 0)),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
@pytest.mark.slow
def test_what_is_no_spawn_job_is_refused_loudly_and_nothing_of_it_runs(
    attack: Attack, client: redis.Redis, host: Host, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = Theirs(client, tmp_path / "owned")
    before = REFUSED_JOBS._value.get()
    with caplog.at_level(logging.ERROR, "streamlease"):
        attack(theirs)
        ask(client)
        assert host.asked() == LeadGroup("g/last", 0)
    assert host.quiet, "the job of the attacker was done"
    assert not theirs.mark.exists()
    (said,) = [one for one in caplog.records if one.name == "streamlease.hosts.jobs"]
    assert "is refused, nothing of it was run" in said.getMessage()
    assert "\n" not in said.getMessage()
    assert REFUSED_JOBS._value.get() == before + 1
    assert client.zcard(FAILED_JOBS) == 1, "doctor sees nothing"
    assert list(client.scan_iter(f"rq:job:{JOB_ID}{0:024x}*")) == [], "its data stays"


def test_dependents_of_a_spawn_job_are_not_started(client: redis.Redis, host: Host, tmp_path: Path) -> None:
    theirs = Theirs(client, tmp_path / "owned")
    other = Queue("theirs", connection=client)
    parent = theirs.json.enqueue_call(JOB, (GROUP, 0), job_id=mine(1))
    child = Job.create("os.system", (theirs.command,), connection=client, id="child", origin="theirs")
    child.save()
    client.sadd(parent.dependents_key, "child")
    assert Dependency(["child"]).dependencies == ["child"]
    assert host.asked() == LeadGroup(GROUP, 0)
    ask(client)
    assert host.asked() == LeadGroup("g/last", 0)
    assert other.job_ids == []
    assert not theirs.mark.exists()


def test_commands_over_the_channel_and_a_suspension_are_not_obeyed(client: redis.Redis, host: Host) -> None:
    ask(client, "g/1")
    assert host.asked() == LeadGroup("g/1", 0)
    send_shutdown_command(client, "streamlease-h.1")  # RQ's own worker would end this process
    suspend(client)
    ask(client, "g/2")
    assert host.asked() == LeadGroup("g/2", 0)
    assert client.pubsub_numsub("rq:pubsub:streamlease-h.1")[0][1] == 0


def test_maintenance_reads_no_job_and_forgets_what_is_gone(client: redis.Redis, tmp_path: Path) -> None:
    theirs = Theirs(client, tmp_path / "owned")
    theirs.raw("stays", data=explode(theirs))
    client.rpush(f"rq:queue:{QUEUE}:intermediate", "stays", "gone", b"\xff")
    client.zadd(FAILED_JOBS, {"old": 1, "new": 2**40})
    client.sadd("rq:groups", "theirs")
    HostWorker(client, "h", lambda job: None).run_maintenance_tasks()
    assert client.lrange(f"rq:queue:{QUEUE}:intermediate", 0, -1) == [b"stays"]
    assert client.zrange(FAILED_JOBS, 0, -1) == [b"new"]
    assert not theirs.mark.exists()


def test_a_worker_whose_connection_ends_in_its_maintenance_ends_without_a_word_of_a_defect(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def closed(*_: object) -> int:
        raise redis.ConnectionError("Connection closed by server.")

    worker = HostWorker(client, "h", lambda job: None)
    monkeypatch.setattr(worker.connection, "zremrangebyscore", closed)
    worker.work(burst=True)
    assert [(one.name, one.levelname) for one in caplog.records] == [("streamlease.hosts.jobs", "WARNING")]


@pytest.mark.slow
def test_a_job_that_was_done_keeps_others_from_making_it_again_and_expires(
    client: redis.Redis, host: Host
) -> None:
    record = replace(NOBODY, read_at=1)
    assert _spawn(client, GROUP, record, 0)
    assert host.asked() == LeadGroup(GROUP, 0)
    assert not _spawn(client, GROUP, record, 0)
    end(host.jobs)
    left = {key.decode() for key in client.scan_iter("rq:*")} - {"rq:queues"}
    (job,) = [key for key in left if "worker" not in key]
    assert job.startswith(f"rq:job:{JOB_ID}")
    assert 0 < client.ttl(job) <= 10
    assert client.llen(f"rq:queue:{QUEUE}:intermediate") == 0


def test_a_host_that_ends_puts_back_what_it_took(client: redis.Redis) -> None:
    led: list[SpawnJob] = []
    worker = HostWorker(client, "streamlease-h", led.append)
    ask(client)
    taken = SpawnQueue.dequeue_any(worker.queues, None, client)
    assert taken is not None
    worker.stop()
    worker.execute_job(*taken)
    assert (led, client.llen(WAITING_JOBS), client.llen(f"{WAITING_JOBS}:intermediate")) == ([], 1, 0)


def test_a_request_is_read_without_a_server() -> None:
    fields = {"data": call(GROUP, 7), "origin": QUEUE.encode(), "status": b"queued", "group_id": b""}
    assert read_job(fields) == LeadGroup(GROUP, 7)
    with pytest.raises(JobRefused, match="webhooks"):
        read_job(fields | {"webhooks": b"[]"})


def test_a_redis_that_takes_no_writes_is_told_in_one_line(
    client: redis.Redis, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """As with a full disk: RQ wrote a traceback for each try."""
    ask(client, "g/first")
    assert host.asked() == LeadGroup("g/first", 0)
    caplog.set_level(logging.DEBUG, "streamlease.hosts.jobs")
    client.config_set("min-replicas-to-write", 1)

    def told() -> list[int]:
        said = "h takes no spawn jobs for a moment: ", "h.1 takes no spawn jobs for a moment: "
        found = [one for one in [*caplog.records] if any(words in one.getMessage() for words in said)]
        assert all("NOREPLICAS" in one.getMessage() for one in found)
        return [one.levelno for one in found]

    try:
        deadline = time.monotonic() + 15
        while len(told()) < 3:
            assert time.monotonic() < deadline, caplog.text[-3000:]
            time.sleep(0.01)
        assert told()[:3] == [logging.WARNING, logging.DEBUG, logging.DEBUG], "once a minute"
    finally:
        client.config_set("min-replicas-to-write", 0)
    ask(client)
    assert host.asked() == LeadGroup("g/last", 0)
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.timeout(200)
def test_a_worker_that_loses_redis_is_followed_by_another(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []
    again = threading.Event()

    def work(self: HostWorker, **_: object) -> bool:
        began.append(self.name)
        if len(began) == 1:
            raise redis.ConnectionError("Connection closed by server.")
        again.set()
        return True

    monkeypatch.setattr(HostWorker, "work", work)
    monkeypatch.setattr(jobs_room, "AGAIN_SECONDS", 0.01)
    jobs = SpawnJobs(client, "h", lambda job: None)
    jobs.start()
    try:
        assert again.wait(30)
    finally:
        end(jobs)
    assert began[:2] == ["streamlease-h.1", "streamlease-h.2"]


def test_a_worker_that_waits_shows_now_and_then_that_it_is_alive(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RQ shows it between any two waits, which are a second each."""
    now = 0.0
    monkeypatch.setattr(jobs_room.time, "monotonic", lambda: now)
    worker = HostWorker(client, "w", lambda job: None)
    shown: list[float] = []
    for _ in range(60):
        client.hdel(worker.key, "last_heartbeat")
        worker.heartbeat()
        if client.hexists(worker.key, "last_heartbeat"):
            shown.append(now)
            assert client.ttl(worker.key) > 2 * jobs_room.SHOWN_SECONDS
        now += 1.0
    assert shown == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
