"""Every task has an owner."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.house.plan import MODULES, ROOT

OWNED = {
    "streams/tasks.py": "the owners of tasks: `Supervisor`, and all or none",
    "testing/timelines/loops.py": "processes of virtual time, which end with their timeline",
    "agent/membership/leader_search.py": "awaited at once, in a context of its own",
    "agent/shielded.py": "one step at a time; who asks next gets its error, and it ends with the items",
    "agent/loop.py": "awaited by the thread that called, and cancelled with its call",
    "hosts/serve.py": "awaited by the thread of a probe, and cancelled with its answer",
    "leader/runner.py": "awaited in the same turn, beside what may end it",
    "admin/ui/live/channel_requests.py": "awaited beside the client that may go, and cancelled with it",
    "admin/demo/stage.py": "awaited by the loop that began it, and stopped with it",
    "gateway/catalog/catalog_handlers.py": "awaited beside the client that may go, and stopped with it",
    "gateway/http1/http_connection.py": "among the tasks of its server; its failure is logged",
    "gateway/between/passing_on.py": "awaited beside the client that may go, and cancelled with it",
    "gateway/members/served_member.py": "awaited beside the client that may go, and cancelled with it",
    "hosts/archiving.py": "a thread, awaited in turns; its end is told if the host stops first",
    "hosts/signals/group_signals.py": "of a TaskGroup",
    "services/binding.py": "among the requests at work, which end with the binding",
}
"""Where tasks are made by hand, and who owns them there; elsewhere a `Supervisor` or a TaskGroup does."""


def makes_tasks(path: Path) -> bool:
    """Whether it calls what makes a task of a coroutine."""
    calls = (node.func for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call))
    names = {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}
    return not names.isdisjoint({"create_task", "ensure_future", "run_coroutine_threadsafe"})


def test_every_task_has_an_owner() -> None:
    """Rule 9 of the design page."""
    made = {str(path.relative_to(ROOT)) for path in MODULES.values() if makes_tasks(path)}
    assert made == OWNED.keys()


def test_no_wait_loses_a_cancellation() -> None:
    """As `asyncio.wait_for` can up to Python 3.11; decision 471."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "asyncio.wait_for"
    ]
    assert found == [], "use asyncio.timeout"
