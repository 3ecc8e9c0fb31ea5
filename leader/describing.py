"""Answers operators who ask to see a group, without keeping the leaders of the host from their work.

A small group is shown as it is at the moment of the question. The streams of a large one are looked at in
slices, between which the event loop does what else is to be done: each stream's row is of one moment, all of
them are of a fraction of a second, and may be ahead of what is durable by one group commit. Whoever asks
meanwhile gets the next answer, all of them the same.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamlease.leader.core import view
from streamlease.leader.core.events import Describe
from streamlease.protocol.messages import CommandDone, CommandRefused, CommandReply
from streamlease.streams.tasks import Supervisor, task_failed

if TYPE_CHECKING:
    from streamlease.leader.core.machine import Leader

log = logging.getLogger(__name__)

SLICE = 200
"""Streams that are looked at before others get their turn: about two milliseconds of work."""


@dataclass(slots=True)
class Describer:
    """Makes the answers of one leader."""

    group: str
    send: Callable[[str, CommandReply], None]
    clock: Callable[[], int]
    """The leader's time in milliseconds."""
    supervisor: Supervisor
    """Owns the task that looks at large groups."""
    _asked: list[Describe] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    def answer(self, question: Describe, leader: Leader) -> None:
        """Send what is to be seen of the group to who asked: at once, or soon."""
        if len(leader.durable.streams) <= SLICE:
            try:
                body = json.dumps(view.of_leader(leader, self.clock()))
            except Exception as error:
                self._refuse([question], error)
            else:
                self._reply(question, body)
            return
        self._asked.append(question)
        if self._task is None or self._task.done():
            self._task = self.supervisor.start("the view", self._answer_all(leader))

    async def _answer_all(self, leader: Leader) -> None:
        while self._asked:
            asked, self._asked = self._asked, []
            try:
                body = await self._in_slices(leader)
            except Exception as error:
                self._refuse(asked, error)
                continue
            for question in asked:
                self._reply(question, body)

    async def _in_slices(self, leader: Leader) -> str:
        names, found, texts = view.in_order(leader.durable), [], []
        for begin in range(0, len(names), SLICE):
            await asyncio.sleep(0)
            rows = view.rows(leader, names[begin : begin + SLICE], self.clock())
            found.extend(rows)
            texts.append(json.dumps(rows)[1:-1])
        await asyncio.sleep(0)
        around = {**view.around(leader, found, self.clock())}
        del around["streams"]
        streams = ", ".join(text for text in texts if text)
        return f'{json.dumps(around)[:-1]}, "streams": [{streams}]}}'

    def _reply(self, question: Describe, body: str) -> None:
        reply = CommandDone(group=self.group, request=question.request, body=body)
        self.send(question.mailbox, reply)

    def _refuse(self, asked: list[Describe], error: Exception) -> None:
        """Only the view is missing: who asked learns why, and the leader goes on."""
        log.error("a view of group %s could not be made", self.group, exc_info=error)
        why = str(task_failed(f"leader of {self.group}", "the view", error))
        for question in asked:
            reply = CommandRefused(group=self.group, request=question.request, error=why)
            self.send(question.mailbox, reply)
