"""What a query asks its leader: sent again and again, and perhaps to another leader, until it is answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from streamlease.agent.client import Client
from streamlease.agent.session import Session
from streamlease.protocol.acts import DescribeGroup
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.messages import (
    CutFinished,
    CutFixed,
    CutResumed,
    LeaderToSession,
    SessionToLeader,
)
from streamlease.protocol.topics import SharedSubscription

log = logging.getLogger(__name__)

RESEND_SECONDS = 0.5
ANSWER_SECONDS = 2.0
"""How long one call of `next_cut` waits for the leader; the next call goes on waiting."""

CONNECT_SECONDS = 0.05
"""How often it is looked whether the borrowers are connected."""

_Answer = TypeVar("_Answer", CutFixed, CutFinished, CutResumed)


class Questions:
    """One question of each kind at a time.

    Args:
        raise_error: raises what has happened meanwhile that ends the query.
    """

    def __init__(
        self,
        client: Client,
        subscription: SharedSubscription,
        session: Session,
        raise_error: Callable[[], None],
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._session = session
        self._raise_error = raise_error
        self._answers: dict[type[LeaderToSession], asyncio.Future[Any]] = {}

    @property
    def connected(self) -> bool:
        """Whether all borrowers are connected to the leader."""
        return self._session.connected

    @property
    def term(self) -> int:
        """That of the leader."""
        return self._session.term

    async def ask(self, question: SessionToLeader, kind: type[_Answer], seconds: float) -> _Answer | None:
        """The answer, or None after so long without one."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Answer] = loop.create_future()
        self._answers[kind] = answer
        give_up = loop.time() + seconds
        try:
            while loop.time() < give_up:
                sent = self._session.connected and self._session.post(question)
                with contextlib.suppress(TimeoutError):
                    # No connection or no answer yet: once more.
                    async with asyncio.timeout(RESEND_SECONDS if sent else CONNECT_SECONDS):
                        return await asyncio.shield(answer)
                self._raise_error()
            return None
        finally:
            del self._answers[kind]

    def answer(self, message: LeaderToSession) -> None:
        """The leader has said this."""
        waiting = self._answers.get(type(message))
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    async def view(self) -> dict[str, Any] | None:
        """The group as its leader describes it; None if it does not."""
        try:
            return await self._client.command(self._subscription, DescribeGroup(), seconds=ANSWER_SECONDS)
        except StreamleaseError as error:
            log.warning("%s", error)
            return None
