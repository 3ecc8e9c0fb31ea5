"""Following a journal from outside gives what recovering it gives, whatever happens to the journal."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.operated import Acted, RefusedAct
from streamlease.leader.core.state.outcomes import Reset, StreamTaken
from streamlease.leader.core.state.records import Committed, Leased, Record, StreamsAdded, TermStarted
from streamlease.leader.journal import Journal, recover
from streamlease.leader.journals import JournalFollower
from streamlease.protocol.errors import StreamleaseError
from streamlease.registry import keys, leadership
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.streams.redis.connection import AsyncRedis, ask, connect

GROUP, OTHER = "g/a", "h/a"
S0, S1 = "s.0.0", "s.0.1"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


async def opened(redis: AsyncRedis, group: str = GROUP) -> Journal:
    candidacy = Candidacy(group, "h", "box", LeadershipConfig())
    candidacy.observe(await leadership.read(redis, group), 0)
    term = await candidacy.attempt(redis)
    assert term is not None
    return Journal(redis, group, "h", term, (await recover(redis, group)).last_id)


async def commit(journal: Journal, *records: Record) -> None:
    await journal.write(journal.next_commit(records))


async def test_each_look_brings_what_was_written_since_the_one_before(redis: AsyncRedis) -> None:
    follower = JournalFollower(redis)
    news = await follower.look([GROUP])
    assert news[GROUP].anew
    assert follower.groups[GROUP].state == GroupState()
    assert await follower.look([GROUP]) == {}
    journal = await opened(redis)
    await commit(journal, TermStarted(term=1, host="h"), StreamsAdded(starts={S0: 0, S1: 5}))
    news = await follower.look([GROUP])
    assert (len(news[GROUP].records), news[GROUP].streams, news[GROUP].anew) == (2, {S0, S1}, False)
    await commit(journal, Leased(stream=S1, lease_epoch=1, name="n", session="s"))
    await commit(journal, Committed(offsets={S0: 3}))
    news = await follower.look([GROUP])
    assert news[GROUP].streams == {S0, S1}
    assert follower.groups[GROUP].state == (await recover(redis, GROUP)).state
    assert await follower.look([GROUP]) == {}


async def test_acts_that_change_who_has_a_stream_are_news_of_it(redis: AsyncRedis) -> None:
    follower = JournalFollower(redis)
    journal = await opened(redis)
    await commit(journal, StreamsAdded(starts={S0: 0, S1: 5}))
    await commit(journal, Leased(stream=S0, lease_epoch=1, name="n", session="s"))
    await follower.look([GROUP])
    taken = StreamTaken(stream=S0, owner="n", lease_epoch=1)
    await commit(journal, Acted(who="ann", request="r1", at=1, outcome=taken))
    assert (await follower.look([GROUP]))[GROUP].streams == {S0}
    assert follower.groups[GROUP].state.streams[S0].owner is None
    reset = Reset(moves={S0: (0, 3)}, behind=(S1,))
    await commit(journal, Acted(who="ann", request="r2", at=2, outcome=reset))
    assert (await follower.look([GROUP]))[GROUP].streams == {S0, S1}
    assert follower.groups[GROUP].state.streams[S1].waiting
    refused = RefusedAct(act="pause", who="ann", request="r3", at=3, what="", error="no")
    await commit(journal, refused)
    assert (await follower.look([GROUP]))[GROUP].streams == set()


@pytest.mark.parametrize(
    "outcome",
    [
        {"act": "pause"},
        {"act": "dance"},
        {"act": "drain", "borrower": "b", "streams": [], "stream": "s.0.0"},
        {"act": "reset", "moves": {"s.0.0": [1]}, "behind": []},
    ],
    ids=["a field is missing", "no such act", "a field of another act", "no offsets"],
)
async def test_an_act_of_another_form_is_damage(redis: AsyncRedis, outcome: dict[str, object]) -> None:
    record = {"type": "acted", "who": "ann", "request": "r", "at": 1, "outcome": outcome}
    await commit(await opened(redis), StreamsAdded(starts={S0: 0}))
    await ask(redis, [("XADD", keys.journal(GROUP), "*", "t", 1, "n", 9, "r", json.dumps([record]))])
    with pytest.raises(StreamleaseError, match="journal of group g/a is damaged"):
        await recover(redis, GROUP)


async def test_a_trimmed_journal_is_read_anew(redis: AsyncRedis) -> None:
    follower = JournalFollower(redis)
    journal = await opened(redis)
    await commit(journal, StreamsAdded(starts={S0: 0}))
    await follower.look([GROUP])
    state = (await recover(redis, GROUP)).state
    for offset in range(1, 4):
        await commit(journal, Committed(offsets={S0: offset}))
        state.apply(Committed(offsets={S0: offset}))
    await journal.snapshot(state.snapshot())
    await ask(redis, [("XTRIM", keys.journal(GROUP), "MAXLEN", 0)])
    news = await follower.look([GROUP])
    assert news[GROUP].anew
    assert follower.groups[GROUP].state.streams[S0].committed == 3


async def test_the_first_look_tells_what_happened_lately(redis: AsyncRedis) -> None:
    journal = await opened(redis)
    await commit(journal, StreamsAdded(starts={S0: 0}))
    await commit(journal, Committed(offsets={S0: 1}))
    news = (await JournalFollower(redis).look([GROUP]))[GROUP]
    assert [record.type for _, record in news.records] == ["streams", "committed"]
    assert 0 < news.records[0][0] <= news.records[1][0]


async def test_a_commit_that_was_repeated_counts_once(redis: AsyncRedis) -> None:
    follower = JournalFollower(redis)
    await follower.look([GROUP])
    journal = await opened(redis)
    await commit(journal, StreamsAdded(starts={S0: 0}))
    numbered = journal.next_commit([Leased(stream=S0, lease_epoch=1, name="n", session="s")])
    await journal.write(numbered)
    await journal.write(numbered)  # its answer was lost
    news = await follower.look([GROUP])
    assert [type(record) for _, record in news[GROUP].records] == [StreamsAdded, Leased]


async def test_groups_that_nobody_watches_any_more_are_forgotten(redis: AsyncRedis) -> None:
    follower = JournalFollower(redis)
    for group in (GROUP, OTHER):
        await commit(await opened(redis, group), StreamsAdded(starts={S0: 0}))
    assert (await follower.look([GROUP, OTHER])).keys() == {GROUP, OTHER}
    assert await follower.look([OTHER]) == {}
    assert follower.groups.keys() == {OTHER}


async def test_a_damaged_journal_is_an_error_that_names_it(redis: AsyncRedis) -> None:
    follower = JournalFollower(redis)
    await commit(await opened(redis), StreamsAdded(starts={S0: 0}))
    await follower.look([GROUP])
    await ask(redis, [("XADD", keys.journal(GROUP), "*", "t", 1, "n", 9, "r", "[{]")])
    with pytest.raises(StreamleaseError, match="journal of group g/a is damaged"):
        await follower.look([GROUP])
