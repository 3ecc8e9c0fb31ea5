"""Publishing under a name: what is sent is staged, and given up by lines; who may, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from streamlease.agent import blocking
from streamlease.agent.client import Client, connect
from streamlease.protocol.epochs.order import HIGHEST_EPOCH
from streamlease.protocol.errors import (
    Fenced,
    Indefinite,
    InvalidEpoch,
    InvalidInput,
    InvalidOption,
    MessageTooLarge,
    NotCapable,
    NotDurable,
    StoreUnavailable,
    StreamSealed,
    UnknownSpace,
)
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.core.lines import AdvanceLine, EnterLine, LeaveLine, Line, LoseLine
from streamlease.streams.epochs.keeping import Keeper
from streamlease.streams.epochs.stored import lines_command, parse_lines
from streamlease.streams.epochs.writing import SHORTEST_LEAP, LineWriter, lose
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import Argument, ask
from streamlease.streams.redis.durability import MEMORY
from tests.streams.helpers import Proxy, until


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    async with connect(redis_url, embedded=False) as made:  # so that the tests keep the space
        await made.create_space("clicks", ["clicks/#"], streams=3, epochs=1)
        await made.create_space("pairs", ["pairs/#"], streams=2, epochs=2)
        yield made


async def lines(client: Client, space: str = "clicks") -> list[Line]:
    (reply,) = await ask(client.redis, [lines_command(space, 0)])
    return [one.line for one in parse_lines(space, reply)]


async def keeper_of(client: Client, space: str = "clicks", term: int = 1) -> Keeper:
    definition = await client.spaces.get(space)
    made = Keeper(
        client.redis,
        space,
        definition.epochs,
        definition.streams(),
        term,
        lambda: 0,
        durability=MEMORY,
        timeout=None,
    )
    await made.begin()
    return made


async def published(client: Client, space: str = "clicks") -> list[tuple[bytes, list[int]]]:
    """All messages of the space's streams, payload and epoch, sorted."""
    log, found = AsyncLog(client.redis), []
    for stream in (await client.spaces.get(space)).streams():
        for batch in await log.read(stream, 0):
            found += zip(batch.column("payload").to_pylist(), batch.column("epoch").to_pylist(), strict=True)
    return sorted(found)


async def staged(client: Client, space: str = "clicks") -> dict[str, int]:
    found: dict[str, int] = {}
    for stream in (await client.spaces.get(space)).streams():
        (flat,) = await ask(client.redis, [("HGETALL", keys.staged_epochs(stream))])
        for field, count in zip(flat[::2], flat[1::2], strict=True):
            found[field.decode()] = found.get(field.decode(), 0) + int(count)
    return found


def rows(line: Line) -> dict[tuple[int, ...], int]:
    """How many messages of each epoch a line names."""
    assert isinstance(line, AdvanceLine | LeaveLine)
    found: dict[tuple[int, ...], int] = {}
    for part in line.parts:
        found[part.epoch] = found.get(part.epoch, 0) + part.rows
    return found


async def test_a_publisher_sends_gives_up_and_leaves(client: Client) -> None:
    async with client.epoch_publisher("clicks", "ingest-1") as pub:
        assert pub.frontier == [(0,)]
        stream, offset = await pub.send("clicks/de", b"a", epoch=4)
        assert (type(stream), offset) == (StreamId, 0)
        await pub.submit("clicks/fr", b"b", b"key", epoch=4)
        await pub.send("clicks/de", b"c", epoch=7)
        await pub.advance([5])
        assert pub.frontier == [(5,)]
        await pub.send("clicks/de", b"d", epoch=5)
    enter, advance, leave = await lines(client)
    assert isinstance(enter, EnterLine) and (enter.name, enter.inc) == ("ingest-1", 1) and ":" in enter.host
    assert isinstance(advance, AdvanceLine) and advance.to == ((5,),)
    assert rows(advance) == {(4,): 2}
    assert isinstance(leave, LeaveLine) and leave.upper == ((7,),)
    assert rows(leave) == {(5,): 1, (7,): 1}
    assert await published(client) == []
    keeper = await keeper_of(client)
    assert await keeper.turn()
    assert await published(client) == [(b"a", [4]), (b"b", [4]), (b"c", [7]), (b"d", [5])]
    assert await staged(client) == {}


async def test_many_messages_and_batches_are_named_in_joined_ranges(client: Client) -> None:
    async with client.epoch_publisher("clicks", "ingest-1", max_batch_messages=100) as pub:
        for epoch in (1, 2, 1):
            await pub.send_many("clicks/de", [b"%d" % epoch] * 1000, epoch=epoch)
        await pub.send_many(["clicks/de", "clicks/fr"] * 50, [b"x"] * 100, epoch=2)
        batch = pa.RecordBatch.from_pydict({"payload": [b"y"] * 500})
        await pub.send_batch("clicks/de", batch, epoch=2)
        futures = await pub.submit_many("clicks/de", [b"z"] * 10, epoch=2)
        futures += await pub.submit_batch("clicks/de", batch, epoch=3)
        await pub.advance(3)
        assert all(future.done() for future in futures)
    _, advance, leave = await lines(client)
    assert rows(advance) == {(1,): 2000, (2,): 1610}
    assert rows(leave) == {(3,): 500}
    assert isinstance(advance, AdvanceLine)
    (first,) = [part for part in advance.parts if part.epoch == (1,)]
    assert len(first.ranges) == 2, "neighbours are joined"


@pytest.mark.slow
async def test_side_by_side_calls_keep_their_epochs_apart(client: Client) -> None:
    async with client.epoch_publisher("clicks", "ingest-1") as pub:

        async def send(number: int) -> None:
            if number % 3:
                await pub.send(f"clicks/{number}", b"%d" % (number % 7), epoch=number % 7)
            else:
                await pub.send_many(f"clicks/{number}", [b"%d" % (number % 7)] * 3, epoch=number % 7)

        await asyncio.gather(*map(send, range(300)))
    await (await keeper_of(client)).turn()
    found = await published(client)
    assert len(found) == 500
    assert all(payload == b"%d" % epoch for payload, (epoch,) in found)


async def test_advance_waits_for_what_was_submitted(client: Client) -> None:
    async with client.epoch_publisher("clicks", "ingest-1", linger_ms=2000) as pub:
        receipts = [await pub.submit(f"clicks/{number}", b"x", epoch=0) for number in range(50)]
        assert not any(receipt.done() for receipt in receipts)
        await pub.advance(1)
        assert all(receipt.done() for receipt in receipts)
    assert rows((await lines(client))[1]) == {(0,): 50}


async def test_in_two_dimensions(client: Client) -> None:
    async with client.epoch_publisher("pairs", "p") as pub:
        assert pub.frontier == [(0, 0)]
        await pub.send("pairs/a", b"a", epoch=(1, 1))
        await pub.send("pairs/a", b"b", epoch=[2, 0])
        await pub.advance([(1, 2), (3, 0)])
        assert pub.frontier == [(1, 2), (3, 0)]
        with pytest.raises(NotCapable):
            await pub.send("pairs/a", b"c", epoch=(2, 1))
        await pub.send("pairs/a", b"d", epoch=(2, 2))
    await (await keeper_of(client, "pairs")).turn()
    assert await published(client, "pairs") == [(b"a", [1, 1]), (b"b", [2, 0]), (b"d", [2, 2])]


async def test_what_is_no_epoch_is_refused_in_one_line_and_nothing_written(client: Client) -> None:
    async with client.epoch_publisher("clicks", "p") as pub, client.epoch_publisher("pairs", "p") as pairs:
        await pub.advance(3)
        for epoch, kind in (
            ((1, 2), InvalidEpoch),
            (-1, InvalidEpoch),
            (HIGHEST_EPOCH + 1, InvalidEpoch),
            (True, InvalidEpoch),
            ("4", InvalidEpoch),
            (4.0, InvalidEpoch),
            (None, InvalidEpoch),
            (2, NotCapable),
        ):
            with pytest.raises(kind) as refused:
                await pub.send("clicks/a", b"x", epoch=epoch)  # type: ignore[arg-type]
            assert "\n" not in str(refused.value)
            with pytest.raises(kind):
                await pub.send_many("clicks/a", [b"x"], epoch=epoch)  # type: ignore[arg-type]
        for frontier, kind in (
            (2, NotCapable),
            ([2], NotCapable),
            ([], InvalidEpoch),
            (-1, InvalidEpoch),
            (True, InvalidEpoch),
            (HIGHEST_EPOCH + 1, InvalidEpoch),
            ([(4, 5)], InvalidEpoch),
            ([4, 5], InvalidEpoch),
            ("4", InvalidEpoch),
        ):
            with pytest.raises(kind) as refused:
                await pub.advance(frontier)  # type: ignore[arg-type]
            assert "\n" not in str(refused.value)
        with pytest.raises(InvalidEpoch):
            await pairs.send("pairs/a", b"x", epoch=4)
        with pytest.raises(InvalidEpoch):
            await pairs.advance(4)
        with pytest.raises(InvalidInput, match="a topic of space pairs cannot be sent to by a publisher of"):
            await pub.send("pairs/a", b"x", epoch=4)
        with pytest.raises(UnknownSpace):
            await pub.send("elsewhere", b"x", epoch=4)
        with pytest.raises(MessageTooLarge):
            await pub.send("clicks/a", bytes(17 * 1024 * 1024), epoch=9)
        assert pub.frontier == [(3,)]
    assert await staged(client) == {} == await staged(client, "pairs")
    (leave,) = [line for line in await lines(client) if isinstance(line, LeaveLine)]
    assert leave.upper == (), "what was refused was not sent at"


async def test_who_may_not_enter_writes_nothing(client: Client) -> None:
    await client.create_space("plain", ["plain/#"])
    for name in ("", "no good", "-x", "x" * 64, "!lines"):
        with pytest.raises(InvalidInput, match=r"publisher .* is not a name"):
            client.epoch_publisher("clicks", name)
    for space, options, kind, said in (
        ("plain", {}, InvalidInput, "space plain has no epochs"),
        ("nope", {}, UnknownSpace, "there is no space 'nope'"),
        ("clicks", {"linger_ms": -1}, InvalidOption, "linger_ms"),
        ("clicks", {"delivery_timeout": 0}, InvalidOption, "delivery_timeout"),
    ):
        with pytest.raises(kind, match=said):
            async with client.epoch_publisher(space, "p", **options):
                pass
    assert await lines(client) == []
    await client.spaces.generations.seal("pairs")
    with pytest.raises(StreamSealed):
        async with client.epoch_publisher("pairs", "p"):
            pass
    assert await lines(client, "pairs") == []


async def test_it_must_be_open(client: Client) -> None:
    pub = client.epoch_publisher("clicks", "p")
    for _ in range(2):
        with pytest.raises(InvalidInput, match="is not open"):
            await pub.send("clicks/a", b"x", epoch=1)
        with pytest.raises(InvalidInput, match="is not open"):
            await pub.advance(1)
        async with client.epoch_publisher("clicks", "q") as pub:
            pass
        await pub.close()
    with pytest.raises(InvalidInput, match="was open already"):
        await pub.__aenter__()


async def test_a_failed_message_keeps_its_epoch_open(client: Client) -> None:
    async with client.epoch_publisher("clicks", "p", delivery_timeout=1) as pub:
        good, _ = await pub.send("clicks/good", b"x", epoch=1)
        await ask(client.redis, [("DEL", f"sl:{{{good}}}:meta")])  # as if Redis had lost the stream
        await pub.submit("clicks/good", b"y", epoch=1)
        with pytest.raises(UnknownSpace):
            await pub.advance(2)
        assert pub.frontier == [(0,)], "nothing is changed"
        await pub.advance(2)
        assert pub.frontier == [(2,)]
    advances = [line for line in await lines(client) if isinstance(line, AdvanceLine)]
    assert [rows(line) for line in advances] == [{(1,): 1}]


async def test_a_failed_message_makes_no_clean_end(client: Client) -> None:
    with pytest.raises(UnknownSpace):
        async with client.epoch_publisher("clicks", "p", delivery_timeout=1) as pub:
            stream, _ = await pub.send("clicks/good", b"x", epoch=1)
            await ask(client.redis, [("DEL", f"sl:{{{stream}}}:meta")])
            await pub.submit("clicks/good", b"y", epoch=1)
    assert [type(line) for line in await lines(client)] == [EnterLine]


async def test_an_exception_is_no_clean_end(client: Client) -> None:
    with pytest.raises(RuntimeError, match="of the program"):
        async with client.epoch_publisher("clicks", "p") as pub:
            await pub.send("clicks/a", b"x", epoch=1)
            await pub.advance(1)
            await pub.send("clicks/a", b"y", epoch=1)
            raise RuntimeError("of the program")
    assert [type(line) for line in await lines(client)] == [EnterLine, AdvanceLine]
    async with client.epoch_publisher("clicks", "p") as again:
        assert again.frontier == [(1,)], "it goes on from what it held"
        await again.send("clicks/a", b"y again", epoch=1)
    keeper = await keeper_of(client)
    while await keeper.turn():
        pass
    assert await published(client) == [(b"y again", [1])], "what no line named is dropped"
    assert await staged(client) == {}


async def test_a_client_that_is_closed_first_abandons_its_publishers(redis_url: str, client: Client) -> None:
    """They went on giving signs of life, so nobody else's epochs completed, over connections of their own."""
    other = await connect(redis_url, embedded=False).__aenter__()
    pub = await other.epoch_publisher("clicks", "p").__aenter__()
    never = other.epoch_publisher("clicks", "q")
    await pub.send("clicks/a", b"x", epoch=1)
    await pub.advance(1)
    await pub.submit("clicks/a", b"y", epoch=1)
    await other.close()
    assert sum((await staged(client)).values()) == 2, "what was submitted is staged"
    with pytest.raises(InvalidInput, match=r"^publisher p is not open: "):
        await pub.advance(2)
    await pub.close()
    for one in (pub, never):
        with pytest.raises(InvalidInput, match="or its client is closed: make a new one"):
            await one.__aenter__()
    pool: Any = other.redis.connection_pool
    assert [one for one in pool._available_connections if one.is_connected] == []
    assert [type(line) for line in await lines(client)] == [EnterLine, AdvanceLine], "nothing is given up"
    async with client.epoch_publisher("clicks", "p") as again:
        assert again.frontier == [(1,)]


async def test_what_an_abandoned_publisher_could_not_stage_is_said(client: Client) -> None:
    pub = await client.epoch_publisher("clicks", "p", delivery_timeout=1).__aenter__()
    stream, _ = await pub.send("clicks/good", b"x", epoch=1)
    await ask(client.redis, [("DEL", f"sl:{{{stream}}}:meta")])
    await pub.submit("clicks/good", b"y", epoch=1)
    with pytest.raises(UnknownSpace):
        await pub.abandon()
    await pub.abandon()
    assert [type(line) for line in await lines(client)] == [EnterLine]


async def test_a_newcomer_gets_what_is_not_completed(client: Client) -> None:
    async with client.epoch_publisher("clicks", "a") as one:
        await one.advance(5)
        async with client.epoch_publisher("clicks", "b") as other:
            assert other.frontier == [(5,)]
            await one.advance(9)
            assert other.frontier == [(5,)]
        async with client.epoch_publisher("clicks", "c") as third:
            assert third.frontier == [(9,)]


async def test_another_process_of_the_name_fences_the_first(client: Client) -> None:
    with pytest.raises(Fenced):
        async with client.epoch_publisher("clicks", "p") as first:
            await first.send("clicks/a", b"first", epoch=3)
            async with client.epoch_publisher("clicks", "p") as second:
                await second.send("clicks/a", b"second", epoch=3)
                with pytest.raises(Fenced, match="publisher p of space clicks is not there any more"):
                    await first.advance(4)
                for later in (
                    first.send("clicks/a", b"x", epoch=5),
                    first.submit("clicks/a", b"x", epoch=5),
                    first.send_many("clicks/a", [b"x"], epoch=5),
                    first.advance(6),
                ):
                    with pytest.raises(Fenced, match="is not there any more"):
                        await later
    await (await keeper_of(client)).turn()
    assert await published(client) == [(b"second", [3])]


async def test_staging_alone_finds_that_it_was_replaced(client: Client) -> None:
    first = client.epoch_publisher("clicks", "p")
    await first.__aenter__()
    await first.send("clicks/a", b"first", epoch=3)
    async with client.epoch_publisher("clicks", "p") as second:
        await second.send("clicks/a", b"second", epoch=3)
        with pytest.raises(Fenced, match="is not there any more"):
            await first.send("clicks/a", b"again", epoch=3)
        with pytest.raises(Fenced):
            await first.advance(9)
    with pytest.raises(Fenced):
        await first.close()


async def test_signs_of_life_keep_it_there_and_find_that_it_was_given_up(client: Client) -> None:
    await client.create_space("quick", ["quick/#"], epochs=1, epochs_timeout=0.3)

    async def seen() -> bytes:
        (record,) = await ask(client.redis, [("HGET", keys.writers("quick"), "p")])
        return bytes(record.split()[4])

    pub = client.epoch_publisher("quick", "p")
    await pub.__aenter__()
    first = await seen()
    async with asyncio.timeout(20):
        while await seen() == first:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await lose(client.redis, "quick", "p", 1, "operator")
    assert pub._presence is not None
    presence = pub._presence
    await until(lambda: presence.error is not None)
    with pytest.raises(Fenced, match="was given up"):
        await pub.send("quick/a", b"x", epoch=1)
    with pytest.raises(Fenced):
        await pub.close()
    assert [type(line) for line in await lines(client, "quick")] == [EnterLine, LoseLine]


async def test_lines_that_redis_lost_are_written_again(client: Client) -> None:
    async with client.epoch_publisher("clicks", "p") as pub:
        await pub.advance(1)
        before = (await ask(client.redis, [("HGET", keys.writers("clicks"), "p")]))[0]
        number = (await ask(client.redis, [("HGET", keys.writers("clicks"), "!lines")]))[0]
        await pub.send("clicks/a", b"x", epoch=1)
        await pub.advance(2)
        await ask(  # a failover to a replica that had not got the last line
            client.redis,
            [
                ("HSET", keys.writers("clicks"), "p", before, "!lines", number),
                ("DEL", keys.lines("clicks")),
                ("XADD", keys.lines("clicks"), "1-0", "l", '{"k":"enter","name":"p","inc":1,"host":""}'),
                (
                    "XADD",
                    keys.lines("clicks"),
                    "2-0",
                    "l",
                    '{"k":"advance","name":"p","inc":1,"to":[[1]],"parts":[]}',
                ),
            ],
        )
        await pub.send("clicks/a", b"y", epoch=2)
        await pub.advance(3)
    found = await lines(client)
    assert [rows(line) for line in found if not isinstance(line, EnterLine)] == [{}, {(1,): 1}, {(2,): 1}, {}]


async def test_an_incarnation_that_redis_lost_is_not_issued_again(client: Client) -> None:
    for epoch in (9, 10, 11):
        async with client.epoch_publisher("clicks", "p") as pub:
            await pub.send("clicks/a", b"x", epoch=epoch)
    await ask(client.redis, [("DEL", keys.writers("clicks"), keys.lines("clicks"))])
    async with client.epoch_publisher("clicks", "p") as pub:
        await pub.send("clicks/a", b"x", epoch=9)
    (enter, _) = await lines(client)
    assert isinstance(enter, EnterLine) and enter.inc > 4 + SHORTEST_LEAP


def test_the_blocking_twin(redis_url: str) -> None:
    with blocking.connect(redis_url) as client:
        client.create_space("clicks", ["clicks/#"], epochs=1)
        with client.epoch_publisher("clicks", "p") as pub:
            assert pub.frontier == [(0,)]
            pub.send("clicks/a", b"x", epoch=4)
            for _ in range(100):
                pub.submit("clicks/a", b"y", epoch=5)
            pub.send_many("clicks/a", [b"z"] * 9, epoch=5)
            pub.flush()
            pub.advance([5])
            assert pub.frontier == [(5,)]
            with pytest.raises(NotCapable):
                pub.send("clicks/a", b"x", epoch=4)
        with pytest.raises(RuntimeError), client.epoch_publisher("clicks", "p") as pub:
            assert pub.frontier == [(6,)]
            raise RuntimeError


async def test_a_lost_answer_writes_each_line_once(real_redis_url: str) -> None:
    port = int(real_redis_url.rpartition(":")[2].partition("/")[0])
    async with Proxy(port) as proxy, connect(proxy.url, embedded=False) as client:
        await client.create_space("clicks", ["clicks/#"], epochs=1)
        async with client.epoch_publisher("clicks", "p") as pub:
            for epoch in range(3):
                proxy.lose(b"ingested", times=1)
                await pub.send("clicks/a", b"ingested", epoch=epoch)
                proxy.lose(b'"k":"advance"', times=2)
                await pub.advance(epoch + 1)
            proxy.lose(b'"k":"leave"', times=2)
        assert proxy.lost == 11
        found = await lines(client)
    assert [rows(line) for line in found[1:]] == [{(0,): 1}, {(1,): 1}, {(2,): 1}, {}]


async def test_what_a_line_gives_up_is_given_up_whatever_the_answer(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_space("quick", ["quick/#"], epochs=1, epochs_timeout=0.5)
    async with client.epoch_publisher("quick", "p", delivery_timeout=0.3) as pub:
        await pub.send("quick/a", b"x", epoch=1)
        run, reachable = LineWriter._run, False

        async def unreachable(self: LineWriter, script: str, args: Sequence[Argument]) -> Any:
            if not reachable:
                raise StoreUnavailable("no answer")
            return await run(self, script, args)

        monkeypatch.setattr(LineWriter, "_run", unreachable)
        with pytest.raises(Indefinite, match="is written with the next one, or not"):
            await pub.advance(2)
        assert pub.frontier == [(2,)]
        with pytest.raises(NotCapable):
            await pub.send("quick/a", b"y", epoch=1)
        reachable = True
        async with asyncio.timeout(20):  # the next sign of life writes it
            while len(await lines(client, "quick")) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await pub.advance(2)
    found = await lines(client, "quick")
    assert [rows(line) for line in found[1:]] == [{(1,): 1}, {}, {}]


@pytest.mark.slow
async def test_a_message_that_is_not_durable_enough_is_given_up_by_nobody(real_redis_url: str) -> None:
    async with connect(real_redis_url, embedded=False) as client:
        await client.create_space("clicks", ["clicks/#"], epochs=1)
        text = (await client.redis.hget("sl:{spaces}:defs", "clicks")).decode()
        await client.redis.hset("sl:{spaces}:defs", "clicks", text.replace('"memory"', '"replicated:1"'))
        with pytest.raises(NotDurable, match="a line of publisher p"):
            async with client.epoch_publisher("clicks", "p", delivery_timeout=0.5):
                pass


async def test_the_schema_gains_a_column_under_a_publisher(client: Client) -> None:
    old = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    new = pa.schema([pa.field("n", pa.int64(), nullable=False), ("more", pa.string())])
    await client.create_space("typed", ["typed/#"], epochs=1, schema=old)
    async with client.epoch_publisher("typed", "p") as pub:
        await pub.send("typed/a", {"n": 1}, epoch=4)
        await client.alter_space("typed", schema=new)
        await pub.submit("typed/a", {"n": 2}, epoch=4)
        await pub.submit("typed/a", {"n": 3}, epoch=5)
        await pub.send_batch("typed/a", pa.RecordBatch.from_pydict({"n": [4, 5]}), epoch=5)
        await pub.advance(6)
        await pub.send("typed/a", {"n": 6, "more": "x"}, epoch=6)
    await (await keeper_of(client, "typed")).turn()
    (stream,) = (await client.spaces.get("typed")).streams()
    found = [
        (row["n"], row["more"], row["epoch"])
        for batch in await AsyncLog(client.redis).read(stream, 0)
        for row in batch.to_pylist()
    ]
    assert found == [
        (1, None, [4]),
        (2, None, [4]),
        (3, None, [5]),
        (4, None, [5]),
        (5, None, [5]),
        (6, "x", [6]),
    ]
