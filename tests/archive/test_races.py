"""Two archivers that meet between any two steps, and catalogs whose answer to a commit is lost or untrue."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from streamlease.agent.client import Client
from streamlease.protocol.errors import ArchiveUnavailable
from streamlease.streams.archive import archiver as archiver_module
from streamlease.streams.archive.files import places
from streamlease.streams.archive.recording import recorded
from streamlease.streams.redis.connection import BlockingRedis
from streamlease.streams.spaces.definitions import Space
from tests.archive.helpers import all_of, archive, in_table, publish, rows, same, space_of, trim_all


def named_in_redis(redis: BlockingRedis, space: Space) -> set[str]:
    return {file.path for one in recorded(redis, space.streams()).values() for file in one.files}


async def test_files_that_another_archiver_recorded_first_stay(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 100)
    whole = await rows(client, space)
    record, healed = archiver_module.record, []

    def late(*about: Any) -> None:
        """Between the commit and the record of the one, the other sees what the table has, and records it."""
        if not healed:
            healed.append(0)
            healed.append(archive(blocking, space).healed)
        record(*about)

    monkeypatch.setattr(archiver_module, "record", late)
    assert archive(blocking, space).messages == 100, "it committed them, whoever recorded them"
    assert healed == [0, 2]
    assert set(places.listed(f"{uri}/data")) == named_in_redis(blocking, space)
    await trim_all(client, space)
    assert same(whole, await rows(client, space))
    assert in_table(blocking, space) == all_of(whole)


@pytest.mark.parametrize(
    ("answer", "raised"),
    [(CommitStateUnknownException("502"), ArchiveUnavailable), (CommitFailedException("409"), None)],
    ids=["none", "untrue"],
)
async def test_a_commit_whose_answer_was_lost_keeps_its_files(
    client: Client,
    blocking: BlockingRedis,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    answer: Exception,
    raised: type[Exception] | None,
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 100)
    archive(blocking, space)
    await publish(client, 100, 100)
    whole = await rows(client, space)
    commit, lost = SqlCatalog.commit_table, []

    def committed(catalog: SqlCatalog, *about: Any) -> Any:
        done = commit(catalog, *about)
        if not lost:
            lost.append(done)
            raise answer
        return done

    # What pyiceberg wrote for a commit that was refused, it removes; here the table has it.
    monkeypatch.setattr(
        "pyiceberg.table.update.snapshot._SnapshotProducer._clean_all_uncommitted", lambda one: None
    )
    monkeypatch.setattr(SqlCatalog, "commit_table", committed)
    if raised is None:
        assert archive(blocking, space).healed == 2
    else:
        with pytest.raises(raised):
            archive(blocking, space)
        assert len(places.listed(f"{uri}/data")) == 4
        assert archive(blocking, space).healed == 2
    assert set(places.listed(f"{uri}/data")) == named_in_redis(blocking, space)
    await trim_all(client, space)
    assert same(whole, await rows(client, space))
    assert in_table(blocking, space) == all_of(whole)
