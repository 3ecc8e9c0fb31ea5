"""The end of a space with epochs: nothing that was given up is missing, and nobody comes behind it."""

from __future__ import annotations

import pytest

import streamlease
from streamlease.agent.epochs.epoch_items import EpochBatch, Frontier
from streamlease.protocol.errors import SpaceConflict, StoreRefused, StreamSealed
from streamlease.streams.epochs.sealing import seal_epochs


@pytest.mark.slow
async def test_a_space_ends_with_all_that_was_given_up(redis_url: str) -> None:
    async with streamlease.connect(redis_url) as client:
        await client.create_space("s", topics=["s/#"], streams=2, epochs=1)
        async with client.epoch_publisher("s", "lost") as lost, client.epoch_publisher("s", "ends") as ends:
            await ends.send("s/1", b"waits for the other one", epoch=5)
            await ends.advance(7)
            await lost.send("s/2", b"never given up", epoch=0)
            with pytest.raises(SpaceConflict, match=r"publishers that hold epochs open \((lost|ends), "):
                await client.seal_space("s")
            await lost.send("s/2", b"sent all the same", epoch=0)
        space = await client.seal_space("s")
        assert space.ended
        assert await client.seal_space("s") == space, "safe to repeat"
        async with client.history("s/#", epochs="atomic") as items:
            found = [item async for item in items]
        batches = {item.epoch: len(item) for item in found if isinstance(item, EpochBatch)}
        assert batches == {(0,): 2, (5,): 1}
        assert isinstance(found[-1], Frontier) and found[-1].lower == ()
        with pytest.raises(StreamSealed, match="space s is sealed"):
            async with client.epoch_publisher("s", "late"):
                pass


@pytest.mark.slow
async def test_a_space_without_a_keeper_is_not_sealed_yet(redis_url: str) -> None:
    async with streamlease.connect(redis_url, embedded=False) as client:
        space = await client.create_space("s", topics=["s/#"], streams=1, epochs=1)
        with pytest.raises(StoreRefused, match=r"no keeper has completed them within 0\.2 s: start"):
            await seal_epochs(client.redis, space, 0.2)
        with pytest.raises(StreamSealed):
            async with client.epoch_publisher("s", "late"):
                pass
    async with streamlease.connect(redis_url) as client:
        assert (await client.seal_space("s")).ended
