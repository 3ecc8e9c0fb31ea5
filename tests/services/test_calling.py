"""Calls and their answers, on all kinds of servers: typed, many at once, out of order, each error its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from pydantic import BaseModel

import streamlease
from streamlease.protocol.errors import (
    Indefinite,
    InvalidInput,
    InvalidOption,
    MessageTooLarge,
    NoService,
    ServiceBusy,
    ServiceConflict,
    ServiceError,
    TypeMismatch,
)
from streamlease.services import keys
from streamlease.streams.redis.connection import ask
from tests.awake import awake, within
from tests.services.load import until
from tests.services.models import Blob, Even, Score, Scored, Scorer, TooHigh, score

Client = streamlease.Client


@pytest.fixture
async def clients(redis_url: str) -> AsyncIterator[list[Client]]:
    """Three, each with an endpoint of its own."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(streamlease.connect(redis_url)) for _ in range(3)]


@pytest.fixture
async def pair(embedded_redis_url: str) -> AsyncIterator[tuple[Client, Client]]:
    """A server and a caller."""
    async with (
        streamlease.connect(embedded_redis_url) as one,
        streamlease.connect(embedded_redis_url) as other,
    ):
        yield one, other


async def test_a_call_has_the_answer_of_the_handler(clients: list[Client]) -> None:
    server, caller, _ = clients
    async with server.serve("scorer", {Score: score}):
        assert await caller.call("scorer", Score(x=3), answer=Scored) == Scored(y=1.5)
        assert await server.call("scorer", Score(x=4), answer=Scored) == Scored(y=2.0), "also of itself"


async def test_many_calls_are_under_way_and_answers_come_as_they_are_ready(clients: list[Client]) -> None:
    server, caller, other = clients
    gates = [asyncio.Event() for _ in range(50)]
    done: list[int] = []

    async def wait(request: Score) -> Scored:
        await gates[request.x].wait()
        return Scored(y=request.x)

    async def call(client: Client, x: int) -> None:
        assert (await client.call("gate", Score(x=x), answer=Scored)).y == x
        done.append(x)
        if x:
            gates[x - 1].set()

    async with server.serve("gate", {Score: wait}):
        calls = asyncio.gather(*(call(caller if x % 2 else other, x) for x in range(50)))
        gates[49].set()
        await calls
    assert done == [*range(49, -1, -1)], "the last one first: none delays another"


async def test_calls_go_round_and_those_who_come_later_are_heard_of(clients: list[Client]) -> None:
    one, other, caller = clients
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(one.serve("scorer", {Score: Scorer("one").score}))
        assert (await caller.call("scorer", Score(x=1), answer=Scored)).by == "one"
        await stack.enter_async_context(other.serve("scorer", {Score: Scorer("other").score}))
        counted: Counter[str] = Counter()
        async with within(10):
            while len(counted) < 2:
                counted[(await caller.call("scorer", Score(x=1), answer=Scored)).by] += 1
        counted.clear()
        for x in range(20):
            counted[(await caller.call("scorer", Score(x=x), answer=Scored)).by] += 1
        assert counted == {"one": 10, "other": 10}


async def test_who_waits_is_woken_by_the_first_server(clients: list[Client]) -> None:
    server, caller, _ = clients
    waiting = asyncio.ensure_future(caller.call("later", Score(x=8), answer=Scored, wait=60))
    with pytest.raises(
        NoService, match=r"nobody serves 'later' within 0\.2 s: start a server, or wait longer"
    ):
        await caller.call("later", Score(x=1), answer=Scored, wait=0.2)
    assert not waiting.done()
    async with server.serve("later", {Score: score}):
        with awake() as clock:
            assert (await waiting).y == 4.0
    assert clock.seconds < 3.0, "by the news, not by a look"


async def test_nobody_there_is_said_at_once(clients: list[Client]) -> None:
    with pytest.raises(NoService, match="nobody serves 'none': start a server, or pass wait=SECONDS"):
        await clients[0].call("none", Score(x=1), answer=Scored)
    assert NoService.retriable


async def test_the_error_of_a_handler_comes_as_it_is(clients: list[Client]) -> None:
    server, caller, _ = clients
    async with server.serve("scorer", {Score: score}, errors={Score: TooHigh}):
        with pytest.raises(ServiceError, match="2000 is too high") as caught:
            await caller.call("scorer", Score(x=2000), answer=Scored, error=TooHigh)
        assert caught.value.error == TooHigh(highest=1000)
        with pytest.raises(ServiceError) as untyped:
            await caller.call("scorer", Score(x=2000), answer=Scored)
        assert untyped.value.error is None
        assert not ServiceError("").retriable


async def _fails(request: Score) -> Scored:
    raise ZeroDivisionError("by zero\nin two lines")


async def _lies(request: Score) -> Scored:
    return Score(x=1)  # type: ignore[return-value]


async def _untold(request: Score) -> Scored:
    raise ServiceError("untold", TooHigh(highest=1))


async def _large(request: Score) -> Blob:
    return Blob(data="x" * (1 << 20))


@pytest.mark.parametrize(
    ("handler", "answer", "kind", "says"),
    [
        (_fails, Scored, "ZeroDivisionError",
         "of Score in service 'bad' failed: ZeroDivisionError: by zero in two lines"),
        (_lies, Scored, "TypeError", "it returned Score, not Scored"),
        (_untold, Scored, "ServiceError", "serve was told none"),
        (_large, Blob, "ValueError", "at most 1048576"),
    ],
)  # fmt: skip
async def test_what_goes_wrong_in_a_handler_is_one_line(
    pair: tuple[Client, Client], handler: Any, answer: type[BaseModel], kind: str, says: str
) -> None:
    server, caller = pair
    async with server.serve("bad", {Score: handler}):
        with pytest.raises(ServiceError) as caught:
            await caller.call("bad", Score(x=1), answer=answer)
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.kind == kind


async def test_a_server_that_has_enough_to_do_says_so_and_another_one_is_asked(clients: list[Client]) -> None:
    one, other, caller = clients
    full, free = Scorer("full"), Scorer("free")
    full.may_go_on.clear()
    async with one.serve("scorer", {Score: full.score}, limit=1, drain=0.0):
        stuck = asyncio.ensure_future(caller.call("scorer", Score(x=0), answer=Scored))
        await full.began.wait()
        with pytest.raises(
            ServiceBusy, match=r"service 'scorer': 1 requests are at work there.*try again later"
        ):
            await caller.call("scorer", Score(x=1), answer=Scored)
        assert ServiceBusy.retriable
        async with other.serve("scorer", {Score: free.score}):
            async with within(10):
                while not await _answered_by_free(caller):
                    pass
            for x in range(2, 6):
                assert (await caller.call("scorer", Score(x=x), answer=Scored)).by == "free"
        full.may_go_on.set()
        assert (await stuck).by == "full"
    assert full.ran == {0: 1}


async def _answered_by_free(caller: Client) -> bool:
    """Whether the other one was heard of."""
    try:
        return (await caller.call("scorer", Score(x=2), answer=Scored)).by == "free"
    except ServiceBusy:
        return False


@pytest.mark.slow
async def test_a_call_that_is_cancelled_or_late_cancels_its_handler(clients: list[Client]) -> None:
    server, caller, _ = clients
    scorer = Scorer()
    scorer.may_go_on.clear()
    async with server.serve("scorer", {Score: scorer.score}):
        call = asyncio.ensure_future(caller.call("scorer", Score(x=1), answer=Scored))
        await scorer.began.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(Indefinite, match=r"no answer came within 0\.3 s; it was done, or it was not"):
            await caller.call("scorer", Score(x=2), answer=Scored, timeout=0.3)
        async with within(10):
            while sorted(scorer.cancelled) != [1, 2]:
                await scorer.stopped.wait()
                scorer.stopped.clear()
        scorer.may_go_on.set()
        assert (await caller.call("scorer", Score(x=3), answer=Scored)).y == 1.5


async def test_who_ends_answers_what_is_at_work_and_takes_no_more(clients: list[Client]) -> None:
    one, other, caller = clients
    leaving, staying = Scorer("leaving"), Scorer("staying")
    leaving.may_go_on.clear()
    serving = one.serve("scorer", {Score: leaving.score})
    await serving.__aenter__()
    begun = [asyncio.ensure_future(caller.call("scorer", Score(x=x), answer=Scored)) for x in range(5)]
    while sum(leaving.ran.values()) < 5:
        await leaving.began.wait()
        leaving.began.clear()
    async with other.serve("scorer", {Score: staying.score}):
        closing = asyncio.ensure_future(serving.close())
        for x in range(10, 20):
            async with within(10):
                assert (await caller.call("scorer", Score(x=x), answer=Scored, wait=5)).y == x / 2
        leaving.may_go_on.set()
        assert [answer.by for answer in await asyncio.gather(*begun)] == ["leaving"] * 5
        await closing
        assert (await caller.call("scorer", Score(x=100), answer=Scored)).by == "staying"
    assert all(count == 1 for count in (leaving.ran + staying.ran).values())


async def test_what_is_not_done_when_the_drain_is_over_is_indefinite(pair: tuple[Client, Client]) -> None:
    server, caller = pair
    scorer = Scorer()
    scorer.may_go_on.clear()
    async with server.serve("scorer", {Score: scorer.score}, drain=0.05):
        call = asyncio.ensure_future(caller.call("scorer", Score(x=1), answer=Scored))
        await scorer.began.wait()
    with pytest.raises(Indefinite, match="its server ended, and the handler was not done"):
        await call
    assert scorer.cancelled == [1]


async def test_one_process_serves_several_names(pair: tuple[Client, Client]) -> None:
    server, caller = pair
    one, other = Scorer("one"), Scorer("other")
    async with server.serve("one", {Score: one.score}):
        async with server.serve("other", {Score: other.score}):
            assert (await caller.call("one", Score(x=1), answer=Scored)).by == "one"
            assert (await caller.call("other", Score(x=1), answer=Scored)).by == "other"
            with pytest.raises(InvalidOption, match="this client serves 'other' already"):
                await server.serve("other", {Score: other.score}).__aenter__()
        assert (await caller.call("one", Score(x=1), answer=Scored)).by == "one"
        with pytest.raises(NoService):
            await caller.call("other", Score(x=1), answer=Scored)
    async with server.serve("other", {Score: other.score}):
        assert (await caller.call("other", Score(x=1), answer=Scored, wait=5)).by == "other"


# -- types ---------------------------------------------------------------------------------------------------


def _other_score() -> type[BaseModel]:
    class Score(BaseModel):
        x: str

    return Score


def _newer_score() -> type[BaseModel]:
    class Score(BaseModel):
        x: int
        more: str = "default"

    return Score


class NewerScored(Scored):
    more: int | None = None


async def test_another_type_is_refused_with_both_fingerprints_before_anything_runs(
    clients: list[Client],
) -> None:
    server, caller, _ = clients
    scorer = Scorer()
    async with server.serve("scorer", {Score: scorer.score}):
        says = (
            r"request of Score to service 'scorer' has another type there: x: string here, integer there "
            r"\(fingerprints \w{16} here, \w{16} there\)"
        )
        with pytest.raises(TypeMismatch, match=says):
            await caller.call("scorer", _other_score()(x="1"), answer=Scored)
        with pytest.raises(TypeMismatch, match=r"answer of Score .* another type"):
            await caller.call("scorer", Score(x=1), answer=TooHigh)
        with pytest.raises(TypeMismatch, match="service 'scorer' takes no Even: it takes Score"):
            await caller.call("scorer", Even(x=2), answer=Scored)
    assert not scorer.ran


async def test_a_field_that_was_added_with_a_default_is_no_other_type(clients: list[Client]) -> None:
    server, caller, _ = clients
    async with server.serve("scorer", {Score: score}):
        assert (await caller.call("scorer", _newer_score()(x=6), answer=NewerScored)).y == 3.0


async def test_a_value_that_the_handlers_type_refuses_is_a_mismatch(pair: tuple[Client, Client]) -> None:
    server, caller = pair

    async def even(request: Even) -> Scored:
        raise AssertionError

    Plain = type("Even", (Score,), {})
    async with server.serve("even", {Even: even}):
        with pytest.raises(TypeMismatch, match="Even does not take the request: x: Value error, it is odd"):
            await caller.call("even", Plain(x=3), answer=Scored)


async def test_one_name_has_one_type(clients: list[Client]) -> None:
    one, other, caller = clients

    async def otherwise(request: Score) -> TooHigh:
        return TooHigh(highest=1)

    async with one.serve("scorer", {Score: score}):
        with pytest.raises(
            ServiceConflict,
            match=r"service 'scorer' is served with other types: Score: the answer differs at .*fingerprints",
        ):
            await other.serve("scorer", {Score: otherwise}).__aenter__()
        assert (await caller.call("scorer", Score(x=2), answer=Scored)).y == 1.0
    async with other.serve("scorer", {Score: otherwise}):
        assert (await caller.call("scorer", Score(x=2), answer=TooHigh, wait=5)).highest == 1


# -- what is no service, handler or call ---------------------------------------------------------------------


async def _no_answer(request: Score): ...  # type: ignore[no-untyped-def]


async def _yields(request: Score) -> Any:
    yield 1


async def _takes_other(request: Even) -> Scored:
    return Scored(y=0)


def _blocks(request: Score) -> Scored:
    return Scored(y=0)


@pytest.mark.parametrize(
    ("service", "handlers", "options", "says"),
    [
        ("", {Score: score}, {}, "a service '' is not a name"),
        ("a/b", {Score: score}, {}, "is not a name"),
        ("s", {}, {}, "service s has no handlers"),
        ("s", {Score: _no_answer}, {}, "handler of Score in service s returns, by its annotation, is None"),
        ("s", {Score: _yields}, {}, "yields: there is one answer per request"),
        ("s", {Score: _blocks}, {}, "is no 'async def'"),
        ("s", {Score: 3}, {}, "is no 'async def'"),
        ("s", {Score: _takes_other}, {}, "takes Even, by its annotation"),
        ("s", {int: score}, {}, "a request of service s is int: use a pydantic model"),
        ("s", {"Score": score}, {}, "use a pydantic model"),
        ("s", {Score: score, type("Score", (Even,), {}): score}, {}, "takes Score, by its annotation"),
        ("s", {Score: score}, {"errors": {Even: TooHigh}}, "an error for Even, which it does not take"),
        ("s", {Score: score}, {"errors": {Score: int}}, "the error of Score in service s is int"),
        ("s", {Score: score}, {"limit": 0}, "limit is 0: use 1 to 100000"),
        ("s", {Score: score}, {"limit": True}, "limit is True"),
        ("s", {Score: score}, {"drain": -1}, "drain is -1: use 0 to 3600"),
    ],
)  # fmt: skip
async def test_what_is_no_service_is_refused_in_one_line(
    pair: tuple[Client, Client], service: Any, handlers: Any, options: Any, says: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        pair[0].serve(service, handlers, **options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("service", "request_", "options", "says"),
    [
        ("a b", Score(x=1), {}, "is not a name"),
        ("s", {"x": 1}, {}, "the request is {'x': 1}: pass an instance"),
        ("s", Score, {}, "pass an instance of a pydantic model"),
        ("s", Score(x=1), {"answer": int}, "answer is int: use a pydantic model"),
        ("s", Score(x=1), {"error": "TooHigh"}, "error is 'TooHigh'"),
        ("s", Score(x=1), {"wait": -1}, "wait is -1: use seconds from 0"),
        ("s", Score(x=1), {"wait": float("nan")}, "wait is nan"),
        ("s", Score(x=1), {"timeout": 0}, "timeout is 0: use seconds from 0.001"),
        ("s", Score(x=1), {"timeout": None}, "timeout is None"),
        ("s", Score(x=1), {"timeout": float("inf")}, "timeout is inf"),
    ],
)
async def test_what_is_no_call_is_refused_in_one_line(
    pair: tuple[Client, Client], service: Any, request_: Any, options: Any, says: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await pair[0].call(service, request_, **{"answer": Scored, **options})
    assert says in str(caught.value)


async def test_a_request_that_is_too_large_is_not_sent(pair: tuple[Client, Client]) -> None:
    with pytest.raises(MessageTooLarge, match="has 1048589 bytes: at most 1048576; publish it"):
        await pair[0].call("s", Blob(data="x" * (1 << 20) + "ab"), answer=Scored)


async def test_a_handler_that_is_cancelled_by_what_it_waits_for_has_failed(
    pair: tuple[Client, Client],
) -> None:
    server, caller = pair

    async def cancelled(request: Score) -> Scored:
        raise asyncio.CancelledError

    async with server.serve("scorer", {Score: cancelled}):
        with pytest.raises(ServiceError, match="failed: CancelledError: nobody asked for it"):
            await caller.call("scorer", Score(x=1), answer=Scored)


async def test_what_strangers_write_is_counted_and_harms_nobody(pair: tuple[Client, Client]) -> None:
    server, caller = pair
    async with server.serve("scorer", {Score: score}):
        assert (await caller.call("scorer", Score(x=1), answer=Scored)).y == 0.5
        endpoint, other = await server._services.endpoint(), await caller._services.endpoint()
        there = keys.requests(endpoint.address)
        strange: list[tuple[str | int, ...]] = [
            ("XADD", there, "*", "a", "b"),
            (
                "XADD",
                there,
                "*",
                "f",
                "x",
                "n",
                1,
                "C 1 99999999999999 a b scorer Nothing",
                "{}",
                "nonsense",
                "{}",
            ),
            ("XADD", there, "*", "f", other.id, "n", 2**60, "A 1 x", "{}", "C 9 99999999999999 a b s t", "["),
            (
                "XADD",
                keys.answers(other.id),
                "*",
                "f",
                "x",
                "n",
                1,
                "A 77 x",
                "{}",
                "C 1 9 a b c d",
                "",
                "R 1 x",
                "",
            ),
            ("HSET", keys.SERVICES, "stranger.1/scorer", '"digest":"none"', "two.2/scorer", "", "one", "x y"),
            ("ZADD", keys.ALIVE, 2**50, "stranger.1"),
            ("HSET", keys.TYPES, "none", "{"),
        ]
        await ask(server.redis, strange)
        await until(lambda: endpoint.damaged >= 3 and other.damaged >= 2)
        async with streamlease.connect(server.url) as fresh:
            assert (await fresh.call("scorer", Score(x=6), answer=Scored)).y == 3.0
            async with fresh.serve("scorer", {Score: score}):
                assert (await fresh.call("scorer", Score(x=8), answer=Scored)).y == 4.0
