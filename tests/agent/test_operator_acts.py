"""An operator's act as a message, and what its reply means, without a leader."""

from __future__ import annotations

import pytest

from streamlease.agent.operator_acts import answer_of, command_of, drain_of
from streamlease.protocol.acts import PauseGroup
from streamlease.protocol.errors import ActRefused, InvalidOption, NotLeader
from streamlease.protocol.messages import CommandAstray, CommandDone, CommandRefused


def test_each_command_has_an_id_of_its_own_unless_one_is_given() -> None:
    first, second = (command_of("g/t", PauseGroup(), who="me@here") for _ in range(2))
    assert first.request != second.request
    again = command_of("g/t", PauseGroup(), who="me@here", request="r", at=5, dry_run=True)
    assert (again.group, again.request, again.at, again.dry_run) == ("g/t", "r", 5, True)
    assert drain_of("host", who="me", at=1, undo=False).request != ""


def test_what_is_not_acceptable_is_named_in_one_line() -> None:
    with pytest.raises(InvalidOption, match=r"^request is 'xxx") as refused:
        command_of("g/t", PauseGroup(), who="me", request="x" * 10_000)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
    with pytest.raises(InvalidOption):
        drain_of("host", who="\ud800", at=1, undo=False)


def test_a_reply_is_an_answer_or_says_why_there_is_none() -> None:
    group, request = "g/t", "r"
    done = CommandDone(group=group, request=request, body='{"moved": ["s.0.0"]}')
    assert answer_of(done, group) == {"moved": ["s.0.0"]}
    with pytest.raises(ActRefused, match="it is paused"):
        answer_of(CommandRefused(group=group, request=request, error="it is paused"), group)
    with pytest.raises(NotLeader, match="the host that led g/t does so no more"):
        answer_of(CommandAstray(group=group, request=request), group)
