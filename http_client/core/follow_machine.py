"""The subscriber of P3Sub: a client that follows a filter, whatever pushes do.

Everything comes into one queue, and by one rule: **a page is taken only if it comes right after the
position**, the cursor behind what was taken last. That holds for answers to questions (they name the cursor
that was asked with), for callbacks (`previous`) and for events (`after`, its mark). What does not follow is
dropped: it is doubled, late, or something before it was lost; and the log has it. The `previous` of single
messages would not do, for what a filter leaves out leaves gaps between them.

::

    position -- page --> position -- page --> ...        a page: (previous, messages, next)

Push only saves time. A timer runs since the last page that was taken; when it ends, the client asks what came
since its position. Nothing: all is well, and the timer grows. Something: it is taken, the subscription has
failed, is cancelled, and a new one is made under a new id, beginning behind what was taken. What still comes
for an old id is dropped. A page that does not follow makes the client ask at once.

============= ======================================================================================
Phase         what is under way
============= ======================================================================================
UNSUBSCRIBED  questions, one after the other, or the pause before the next one; nothing pushes
SUBSCRIBED    a subscription stands, and the timer runs
CHECKING      a subscription stands, and a question is under way
ENDED         nothing any more
============= ======================================================================================

Without pull, a new subscription takes the place of each question, because it begins with everything behind
its position. Without push, a question waits at the gateway until there is something.

An empty answer moves the position past what the filter leaves out, but not the chain of the subscription:
what follows either of both follows, because nothing that matches lies between them.

Not promised: exactly once over a crash of the program. The cursor is kept after the work, so work may be done
twice.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeGuard

from streamlease.http.core.follow_pauses import FollowPauses
from streamlease.http.core.follow_steps import (
    Ask,
    Cancel,
    Effects,
    FollowBegun,
    FollowEvent,
    FollowOptions,
    GiveUp,
    HandOver,
    PagePushed,
    PushEnded,
    QuestionAnswered,
    QuestionFailed,
    Subscribe,
    SubscriptionMade,
    Woke,
)
from streamlease.http.core.gateway_errors import CursorTruncated
from streamlease.http.core.gateway_pages import GatewayPage, mark
from streamlease.http.core.quiet_timer import QuietTimer
from streamlease.protocol.errors import StreamleaseError

REMEMBERED = 1024
"""Positions that were left: a push that comes after one of them is late or doubled."""

LEAST_BETWEEN_QUESTIONS = 0.02


class FollowPhase(Enum):
    """See above."""

    UNSUBSCRIBED = "unsubscribed"
    SUBSCRIBED = "subscribed"
    CHECKING = "checking"
    ENDED = "ended"


_U, _S, _C, _E = FollowPhase
TABLE: dict[tuple[FollowPhase, type[FollowEvent]], frozenset[FollowPhase]] = {
    (_U, FollowBegun): frozenset({_S}),
    (_U, QuestionAnswered): frozenset({_S}),
    (_U, QuestionFailed): frozenset({_S, _E}),
    (_U, Woke): frozenset({_S}),
    (_S, SubscriptionMade): frozenset(),
    (_S, PagePushed): frozenset({_C, _U}),
    (_S, PushEnded): frozenset({_U, _E}),
    (_S, Woke): frozenset({_C}),
    (_C, QuestionAnswered): frozenset({_S, _U}),
    (_C, QuestionFailed): frozenset({_S, _U, _E}),
    (_C, SubscriptionMade): frozenset(),
    (_C, PagePushed): frozenset(),
    (_C, PushEnded): frozenset({_U}),
}
"""Where each event may lead, if it does not leave the phase as it is. One without a line changes nothing: it
is late, or about an earlier life.
"""


@dataclass
class FollowCounts:
    """What happened, for people and tests."""

    taken: int = 0
    doubled: int = 0
    gaps: int = 0
    rejected: int = 0
    """Pushes for an earlier subscription."""
    questions: int = 0
    subscriptions: int = 0
    failed_subscriptions: int = 0
    losses: int = 0
    """How often something was not there any more, and was passed over."""


class FollowMachine:
    """Follows from `since` on, which may also be ``earliest``, ``latest`` or a time."""

    def __init__(self, since: str, options: FollowOptions) -> None:
        self._options = options
        self._position = since
        self._chained = since
        self._begun = not _is_symbolic(since)
        """Whether the position is a cursor; if not, the first page has nothing to follow."""
        self._left: deque[str] = deque(maxlen=REMEMBERED)
        self._quiet = QuietTimer(options.quiet_least, options.quiet_most)
        self._question: int | None = None
        self._asked = since
        self._asked_at = -math.inf
        self._subscription: int | None = None
        self._was_pushed = False
        self._pauses = FollowPauses(options.spread, options.patience)
        self.phase = FollowPhase.UNSUBSCRIBED
        self.due: float | None = None
        """When to wake it."""
        self.counts = FollowCounts()

    @property
    def position(self) -> str:
        """Behind what was handed over last, and what the filter leaves out behind that."""
        return self._position

    def step(self, event: FollowEvent, now: float) -> Effects:
        """Take `event`; returns what to do, in that order."""
        before = self.phase
        legal = TABLE.get((before, type(event)))
        if legal is None:
            if isinstance(event, PagePushed):
                self.counts.rejected += 1
            return []
        effects = self._handlers[type(event)](self, event, now)
        assert self.phase in {before, *legal}, f"{type(event).__name__} led to {self.phase}"
        return effects

    # ------------------------------------------------------------ questions

    def _on_begun(self, event: FollowBegun, now: float) -> Effects:
        return self._onward(now)

    def _on_answered(self, event: QuestionAnswered, now: float) -> Effects:
        if event.question != self._question:
            return []
        self._question = None
        self._pauses.answered()
        page = event.page
        if self._asked not in (self._position, self._chained):  # a push was quicker
            return self._rest(now)
        if not page.messages:
            self._position = page.next
            self._begun = True
            if self._subscription is None:
                return self._onward(now, idle=True)
            self._quiet.found_nothing()
            return self._rest(now)
        effects = self._take(page)
        if self._subscription is not None:
            self.counts.failed_subscriptions += 1
            self._quiet.found_something()
            if not self._was_pushed:
                self._pauses.push_failed(now)
            effects.append(self._cancelled())
        full = len(page.messages) >= self._options.limit
        return effects + (self._ask(now, 0.0) if full else self._onward(now))

    def _on_failed(self, event: QuestionFailed, now: float) -> Effects:
        if event.question != self._question:
            return []
        self._question = None
        if self._may_pass_over(event.error):
            return self._pass_over(event.error, now)
        if not event.error.retriable or self._pauses.is_enough(now):
            return self._given_up(event.error)
        self.due = now + self._pauses.after_question()
        self.phase = _U if self._subscription is None else _S
        return []

    def _on_woke(self, event: Woke, now: float) -> Effects:
        if self.due is None or now < self.due:
            return []
        self.due = None
        if self._subscription is None:
            return self._onward(now)
        if self._options.pull:
            self.phase = _C
            return self._ask(now, 0.0)
        self._quiet.found_nothing()
        return [self._cancelled(), *self._subscribe(now)]

    # ------------------------------------------------------------ pushes

    def _on_made(self, event: SubscriptionMade, now: float) -> Effects:
        if event.subscription == self._subscription:
            self._chained = event.begin
            if not self._begun:
                self._position, self._begun = event.begin, True
        return []

    def _on_pushed(self, event: PagePushed, now: float) -> Effects:
        if event.subscription != self._subscription:
            self.counts.rejected += 1
            return []
        if self._follows(event.after):
            if event.page.messages:
                self._pauses.pushed()
                self._was_pushed = True
                self._quiet.pushed(now)
            if self.phase is _S:
                self.due = now + self._quiet.seconds
            return self._take(event.page)
        if event.after in self._left:
            self.counts.doubled += 1
            return []
        self.counts.gaps += 1
        if self.phase is _C:  # the answer will tell
            return []
        if self._options.pull:
            self.phase = _C
            return self._ask(now, 0.0)
        self.counts.failed_subscriptions += 1
        self._pauses.push_failed(now)
        return [self._cancelled(), *self._onward(now)]

    def _on_push_ended(self, event: PushEnded, now: float) -> Effects:
        if event.subscription != self._subscription:
            return []
        self._subscription = None
        if not self._options.pull and self._may_pass_over(event.error):
            return self._pass_over(event.error, now)
        if not self._options.pull and (not event.error.retriable or self._pauses.is_enough(now)):
            return self._given_up(event.error)
        self._pauses.push_failed(now)
        if self.phase is _C:
            self.phase = _U
            return []
        return self._onward(now)

    def _follows(self, after: str | None) -> bool:
        if after is None:
            return not self._begun
        return self._begun and after in (mark(self._position), mark(self._chained))

    # ------------------------------------------------------------ what to do next

    def _onward(self, now: float, *, idle: bool = False) -> Effects:
        """Nothing is under way: subscribe if that may be, else ask, or wait for the time.

        Args:
            idle: a question has just told that there is nothing.
        """
        options = self._options
        if options.push and now >= self._pauses.push_again_at and (self._begun or not options.pull):
            return self._subscribe(now)
        self.phase = _U
        if not options.pull:
            self.due = self._pauses.push_again_at
            return []
        wait = options.wait if self._begun else 0.0  # until there is a cursor, time that passes is lost
        if options.push and self._begun:
            wait = min(wait, self._pauses.push_again_at - now)
        least = self._asked_at + LEAST_BETWEEN_QUESTIONS
        if idle and not wait:
            self._quiet.found_nothing()
            least = now + self._quiet.seconds
        if now < least:
            self.due = least
            return []
        return self._ask(now, wait)

    def _ask(self, now: float, wait: float) -> Effects:
        self.counts.questions += 1
        self._question, self._asked, self._asked_at, self.due = (
            self.counts.questions,
            self._position,
            now,
            None,
        )
        return [Ask(self._question, self._position, wait)]

    def _subscribe(self, now: float) -> Effects:
        self.counts.subscriptions += 1
        self._subscription, self._was_pushed = self.counts.subscriptions, False
        self._chained = self._position
        return [Subscribe(self._subscription, self._position), *self._rest(now)]

    def _cancelled(self) -> Cancel:
        assert self._subscription is not None
        cancelled, self._subscription = Cancel(self._subscription), None
        self.phase = _U
        return cancelled

    def _rest(self, now: float) -> Effects:
        if self._subscription is None:
            return self._onward(now)
        self.phase = _S
        self.due = now + self._quiet.seconds
        return []

    def _take(self, page: GatewayPage) -> Effects:
        self._left.extend({mark(self._position), mark(self._chained)} - {mark(page.next)})
        self._position = self._chained = page.next
        self._begun = True
        self._pauses.took()
        if not page.messages:
            return []
        self.counts.taken += len(page.messages)
        return [HandOver(page)]

    def _may_pass_over(self, error: StreamleaseError) -> TypeGuard[CursorTruncated]:
        return isinstance(error, CursorTruncated) and not self._options.fail_on_loss

    def _pass_over(self, error: CursorTruncated, now: float) -> Effects:
        """Go on with all that is left."""
        self.counts.losses += 1
        effects: Effects = [] if self._subscription is None else [self._cancelled()]
        self._position = self._chained = error.oldest
        self._begun = True
        return [*effects, *self._onward(now)]

    def _given_up(self, error: StreamleaseError) -> Effects:
        effects: Effects = [] if self._subscription is None else [self._cancelled()]
        self.phase, self.due = _E, None
        return [*effects, GiveUp(error)]

    _handlers: ClassVar[dict[type[FollowEvent], Callable[..., Effects]]] = {
        FollowBegun: _on_begun,
        QuestionAnswered: _on_answered,
        QuestionFailed: _on_failed,
        SubscriptionMade: _on_made,
        PagePushed: _on_pushed,
        PushEnded: _on_push_ended,
        Woke: _on_woke,
    }


def _is_symbolic(since: str) -> bool:
    """Whether it is ``earliest``, ``latest`` or a time; cursors begin with a letter."""
    return since in ("earliest", "latest") or since[:1].isdigit()
