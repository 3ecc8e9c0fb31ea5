"""Whose turn it is to send: one at a time, and nobody waits who is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from streamlease.streams.publish.sending.duty import Duty, Who


def never_wanted() -> None:
    """Nothing is to be sent while the thread has the loan."""
    raise AssertionError


async def test_rounds_come_after_what_is_on_a_line() -> None:
    duty = Duty()
    rounds = asyncio.create_task(duty.called())
    duty.begin_line()
    duty.call()
    await asyncio.sleep(0)
    assert (duty.who, rounds.done()) == (Who.LINE, False)
    duty.end_line(rounds=True)
    await rounds
    assert duty.who is Who.ROUNDS
    duty.rest()
    assert duty.who is Who.NOBODY


async def test_a_line_after_which_nothing_waits_calls_nobody() -> None:
    duty = Duty()
    duty.begin_line()
    duty.end_line(rounds=False)
    assert duty.who is Who.NOBODY


async def test_a_call_while_nothing_is_awaited_is_not_lost() -> None:
    duty = Duty()
    duty.call()
    await asyncio.wait_for(duty.called(), 10)


async def test_a_thread_is_asked_for_what_it_was_lent() -> None:
    duty = Duty()
    asked: list[int] = []
    loan = duty.lend(lambda: asked.append(loan))
    assert duty.has(loan)
    assert duty.lend(never_wanted) == 0
    duty.call()
    assert (asked, duty.who) == ([loan], Who.THREAD)
    duty.end_loan(rounds=True)
    assert (duty.has(loan), duty.who) == (False, Who.ROUNDS)
    duty.call()
    assert asked == [loan]


async def test_a_former_loan_is_no_loan() -> None:
    duty = Duty()
    former = duty.lend(never_wanted)
    duty.end_loan(rounds=False)
    present = duty.lend(never_wanted)
    assert (duty.has(former), duty.has(present)) == (False, True)


@pytest.mark.parametrize(
    "begin", [lambda _: None, Duty.call, Duty.begin_line, lambda duty: duty.lend(never_wanted)]
)
async def test_the_end_is_for_good(begin: Callable[[Duty], object]) -> None:
    duty = Duty()
    begin(duty)
    duty.end()
    duty.call()
    duty.end_line(rounds=True)
    duty.end_loan(rounds=True)
    assert duty.who is Who.ENDED
    assert duty.lend(never_wanted) == 0
