"""Names that are meant to be code: they are text, in every document and on the page."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from streamlease.admin.ui.app import STATIC, policy_of
from streamlease.admin.ui.group_board import GroupBoard
from streamlease.admin.ui.group_events import event_of
from streamlease.admin.ui.live.console_states import to_bytes
from streamlease.leader.core.state.operated import Acted
from streamlease.leader.core.state.outcomes import GroupPaused
from streamlease.leader.core.state.records import TermStarted
from streamlease.protocol.topics import SharedSubscription

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"><svg onload=alert('1')>",
    "javascript:alert(1)",
    "]]></script><!--",
    "line\nevent: group\ndata: {}\n\n",
    "separators \u2028 \u2029 and \udcff",
    "%3Cimg%20src=x%3E",
    "__proto__",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_state_is_one_line_of_json_whatever_stands_in_it(name: str) -> None:
    seen: dict[str, Any] = {name: name, "list": [name]}
    text = to_bytes(seen).decode()
    assert "\n" not in text
    assert text.isascii()
    assert json.loads(text) == seen


@pytest.mark.parametrize("name", HOSTILE)
def test_events_of_a_group_hold_names_as_data(name: str) -> None:
    for record in (
        TermStarted(term=1, host=name),
        Acted(who=name, request="r", at=1, outcome=GroupPaused(until=None)),
    ):
        event = event_of(record, 1)
        assert event is not None
        assert name in event["text"]
    assert GroupBoard(SharedSubscription("g", "a")).summary is None


def test_the_script_has_no_way_to_make_html_of_text() -> None:
    sinks = re.compile(
        r"[iI]nnerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|\son\w+=\""
    )
    for file in STATIC.iterdir():
        if file.suffix in (".js", ".html"):
            assert not sinks.search(file.read_text()), file.name
    policy = policy_of((STATIC / "index.html").read_text())
    assert "default-src 'self'" in policy
    assert "script-src 'self' 'sha256-" in policy
    assert "unsafe" not in policy
