"""Fixtures that every test may use, and the rule that a skipped test is a failed one in CI."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.servers import ALL_KINDS, REAL_KINDS, Kind, RedisServer, ServerMissing, ServerPool

MakeServer = Callable[..., RedisServer]
LONG_SUITES = ("cluster", "topology", "helm")
OUTER_ROOMS = {
    "admin", "alerts", "archive", "bench", "demo", "deployment", "examples", "gateway", "http_client", "mqtt",
    "ui", "test_readme.py", "test_release.py", "test_run.py", "test_setting_up.py", "test_walk.py",
}  # fmt: skip
"""Their tests are marked ``outer``: the fast suite is that of the core."""
HERE = Path(__file__).resolve().parent
IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}


@pytest.fixture(scope="session")
def redis_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPool]:
    """The session's shared servers. Tests that stop or pause a server take ``make_redis_server``."""
    pool = ServerPool(tmp_path_factory.mktemp("redis"))
    yield pool
    pool.close()


def _emptied(pool: ServerPool, kind: Kind) -> str:
    try:
        server = pool.get(kind)
    except ServerMissing as missing:
        pytest.fail(str(missing), pytrace=False)
    server.flush()
    return server.url


@pytest.fixture(params=ALL_KINDS, ids=str)
def redis_url(request: pytest.FixtureRequest, redis_servers: ServerPool) -> str:
    """URL of an empty Redis; the test runs once on each kind of server."""
    return _emptied(redis_servers, request.param)


@pytest.fixture(params=REAL_KINDS, ids=str)
def real_redis_url(request: pytest.FixtureRequest, redis_servers: ServerPool) -> str:
    """Like ``redis_url``, without the fake: for INFO, WAIT, CONFIG GET, WAITAOF and the like."""
    return _emptied(redis_servers, request.param)


@pytest.fixture
def embedded_redis_url(redis_servers: ServerPool) -> str:
    """URL of an empty Redis of the embedded kind: for tests that would gain nothing from three servers."""
    return _emptied(redis_servers, Kind.EMBEDDED)


@pytest.fixture
def make_redis_server(tmp_path: Path) -> Iterator[MakeServer]:
    """Makes started servers of the test's own, to be killed, paused or restarted.

    ``make_redis_server(kind="embedded", persistent=False, settings=None) -> RedisServer``
    """
    made: list[RedisServer] = []

    def make(
        kind: Kind | str = Kind.EMBEDDED, *, persistent: bool = False, settings: dict[str, str] | None = None
    ) -> RedisServer:
        directory = tmp_path / f"redis-{len(made)}"
        server = RedisServer(kind, directory, persistent=persistent, settings=settings)
        made.append(server)
        try:
            return server.start()
        except ServerMissing as missing:
            pytest.fail(str(missing), pytrace=False)

    yield make
    for server in made:
        server.stop()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """With several workers (``-n 4 --dist loadfile``), what takes long is spread over the run."""
    return Spread(config, log) if config.getoption("dist") == "loadfile" else None


class Spread(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Each file goes to one worker; the files that start Java are one group, which goes to one worker.

    Files that compute go to one worker at a time, for they want a processor of their own; the other workers
    run what mostly waits meanwhile, and take one that computes only where nothing else is left. Every worker
    is a process with servers, ports and temporary folders of its own.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "java" if starts_java(self.config.rootpath / file) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        if any(self._computes(other) for other in self.nodes if other is not node):
            waiting = next((scope for scope in self.workqueue if not self._is_of_those(scope)), None)
            if waiting is not None:
                self.workqueue.move_to_end(waiting, last=False)
        super()._assign_work_unit(node)

    def _computes(self, node: WorkerController) -> bool:
        given = self.assigned_work[node].items()
        return any(self._is_of_those(scope) and not all(tests.values()) for scope, tests in given)

    def _is_of_those(self, scope: str) -> bool:
        return scope != "java" and computes(self.config.rootpath / scope)


@functools.cache
def starts_java(file: Path) -> bool:
    """Whether a test of that file is marked ``spark``."""
    return file.is_file() and "pytest.mark.spark" in file.read_text()


@functools.cache
def computes(file: Path) -> bool:
    """Whether a test of that file is marked ``thorough``."""
    return file.is_file() and "pytest.mark.thorough" in file.read_text()


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test of an outer room is marked so."""
    if item.path.is_relative_to(HERE) and item.path.relative_to(HERE).parts[0] in OUTER_ROOMS:
        item.add_marker("outer")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers begin with the long files, so that none of them is the last."""
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


def pytest_collection_finish() -> None:
    """Tests that look for what nobody holds any more look through what came after twelve thousand items."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """What was set aside is given back as the interpreter ends."""
    gc.unfreeze()


def _turn(item: pytest.Item) -> int:
    """When the file of a test comes; within a file the order stays."""
    if starts_java(item.path):
        return 0
    if computes(item.path):
        return 1
    return 2 if _takes_long(item.path) else 3


@functools.cache
def _takes_long(file: Path) -> bool:
    return file.parent.name in LONG_SUITES or "pytest.mark.cluster" in file.read_text()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What all Javas of the tests start with is made before a test's time runs, and only where one starts."""
    if item.get_closest_marker("spark") and item.path.is_relative_to(HERE):
        from tests.spark.classes import java_options

        java_options()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a skip hides a missing piece, so it fails; an expected failure (xfail) stays what it is."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, which fails in CI: {_reason(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module that skips itself while it is collected."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was skipped, which fails in CI: {_reason(report.longrepr)}"
    return report


def _reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
