"""One webhook: what comes for it is delivered in order, one request at a time.

::

    wait until there may be something -> a turn -> read a page -> POST it -> 2xx -> write the cursor
                                                                     |
                                                                     +-> pause, then one message

The cursor is written before the next delivery begins. So whoever takes over repeats what was not
acknowledged, and at most one delivery whose acknowledgement came in the moment in which this gateway died.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from pydantic_core import to_json

from streamlease.gateway.core.bearer import NotAllowed
from streamlease.gateway.core.cursors import Cursor, CursorCodec, InvalidCursor
from streamlease.gateway.core.refusals import LostSince, TruncatedSince
from streamlease.gateway.feeds import Feed, Feeds
from streamlease.gateway.pages.message_page import MessagePage
from streamlease.gateway.problems import problem_name
from streamlease.gateway.since_reading import SinceReading
from streamlease.gateway.webhooks import metrics
from streamlease.gateway.webhooks.callback_lines import CallbackLines, NoAnswer, NotAsked
from streamlease.gateway.webhooks.core.callbacks import Callback, InvalidCallback, parse_callback
from streamlease.gateway.webhooks.core.subscribing_forms import (
    encoded,
    standing_json,
)
from streamlease.gateway.webhooks.core.webhook_standing import (
    Patience,
    Trouble,
    WebhookStanding,
    WebhookState,
)
from streamlease.gateway.webhooks.delivery_turns import DeliveryTurns
from streamlease.gateway.webhooks.kept_webhooks import read_webhook
from streamlease.gateway.webhooks.passing_by import Follower
from streamlease.protocol.errors import Fenced, InvalidInput, StreamleaseError
from streamlease.registry.webhooks.webhook_records import WebhookRecord
from streamlease.streams.tasks import Supervisor, stop

MOST_MESSAGES = 256
MOST_BYTES = 128 * 1024
"""Of a delivery; a single message may be larger."""

AGAIN_SECONDS = 0.5
"""After Redis, or the spaces of a filter, were not there."""

PAUSE_SECONDS = 0.02

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeliveryMeans:
    """What all webhooks of a gateway share.

    Args:
        check: raises ``NotAllowed`` if the token of that name may not read a filter (any more).
        now: ms since 1970.
    """

    feeds: Feeds
    reading: SinceReading
    cursors: CursorCodec
    lines: CallbackLines
    turns: DeliveryTurns
    patience: Patience
    check: Callable[[str, str], None]
    now: Callable[[], int]


class SlotWays:
    """What a webhook needs of its slot."""

    async def may_deliver(self) -> None:
        """Wait until this gateway has the slot for sure.

        Raises:
            Fenced: another one has it.
        """
        raise NotImplementedError

    def still_may(self) -> bool:
        """Whether that is so at this moment."""
        raise NotImplementedError

    async def settle(self, record: WebhookRecord, standing: bytes) -> bool:
        """Write how it stands; False: it was changed or deleted, and this is not what it is any more.

        Raises:
            Fenced: another one has the slot.
        """
        raise NotImplementedError


class WebhookDelivery:
    """Delivers one webhook, until it is told to leave or there is nothing more to do.

    Raises:
        Unsupported: what is kept of it cannot be read.
    """

    def __init__(self, means: DeliveryMeans, slot: SlotWays, record: WebhookRecord) -> None:
        self.record = record
        self._means = means
        self._slot = slot
        self.standing: WebhookStanding
        self._definition, self.standing = read_webhook(record)
        self._secret = encoded(self._definition.secret)
        self._feeds: list[Feed] = []
        self._follower: Follower | None = None
        self._leaving = False
        self._waiting = False
        self._posting = False
        self._task: asyncio.Task[None] | None = None

    _position: Cursor
    _callback: Callback

    def start(self, tasks: Supervisor, after: WebhookDelivery | None = None) -> None:
        """Begin, once `after`, which delivered the same webhook, has ended."""
        self._task = tasks.start(f"webhook {self.record.name.id}", self._run(after))

    def leave(self) -> None:
        """End, after what is under way."""
        self._leaving = True
        if not self._posting and self._task is not None:
            self._task.cancel()

    async def gone(self, seconds: float | None = None) -> None:
        """Wait until it has ended; after `seconds` it is stopped."""
        if self._task is None or self._task is asyncio.current_task():
            return
        await asyncio.wait([self._task], timeout=seconds)
        if not self._task.done():
            await stop([self._task])

    async def _run(self, after: WebhookDelivery | None) -> None:
        if after is not None:
            await after.gone()
        try:
            url, allow_private = self._definition.callback, self._means.lines.allow_private
            self._callback = callback = parse_callback(url, allow_private=allow_private)
            self._position = self._means.cursors.parse(self.standing.position)
        except InvalidCallback as error:
            await self._give_up("callback-refused", str(error))
            return
        except InvalidCursor as error:
            await self._give_up("invalid-cursor", str(error))
            return
        self._head = (
            f"POST {callback.target} HTTP/1.1\r\nhost: {callback.host_header}\r\nuser-agent: streamlease\r\n"
            f"accept: */*\r\ncontent-type: application/json\r\n"
            f"streamlease-subscription: {self.record.name.id}\r\n"
        ).encode()
        try:
            while not self._leaving and self.standing.state is not WebhookState.SUSPENDED:
                try:
                    await self._once()
                except LostSince as error:
                    await self._go_on(error)
                except (Fenced, TruncatedSince, NotAllowed, InvalidInput):
                    raise
                except StreamleaseError as error:
                    self._unfollow()
                    _logger.info("webhook %s waits: %s", self.record.name.id, error)
                    await asyncio.sleep(AGAIN_SECONDS)
        except Fenced:
            return
        except TruncatedSince as error:
            await self._give_up(problem_name(error), str(error), error.oldest)
        except NotAllowed as error:
            await self._give_up("not-allowed", str(error))
        except InvalidInput as error:
            await self._give_up("invalid-input", str(error))
        finally:
            self._unfollow()

    # ------------------------------------------------------------ one delivery

    async def _once(self) -> None:
        pause = self.standing.again_at - self._means.now()
        if pause > 0:
            await asyncio.sleep(pause / 1000)
        suspect = self.standing.state is WebhookState.FAILING
        if not suspect:
            await self._something()
        async with self._means.turns.turn(suspect=suspect):
            page = await self._page(1 if suspect else MOST_MESSAGES)
            if page.count:
                await self._deliver(page, suspect=suspect)
                return
        self._position = page.next
        if suspect:  # what it failed at is gone: deleted with its space
            await self._settle(self.standing.taken(page.next_text, 0))
        elif self._follower is None:
            await asyncio.sleep(PAUSE_SECONDS)  # the feeds are not so far, or begin anew

    async def _something(self) -> None:
        """Wait until there may be something behind the position."""
        follower = self._follower
        if follower is not None:
            self._waiting = True
            try:
                await follower.told()
            finally:
                self._waiting = False
            if not follower.unsure:
                self._position = follower.passed(self._feeds, self._position)
                return
            self._unfollow()
        self._feeds = await self._means.reading.feeds_of(self._definition.filter)
        self._follower = follower = Follower(self._definition.filter)
        for feed in self._feeds:
            feed.interests.add(follower.filter, follower)

    def _unfollow(self) -> None:
        """Follow no longer, as it is not known any more what is behind the position."""
        if self._follower is not None:
            self._means.feeds.leave(self._feeds, self._follower)
            self._follower = None

    async def _page(self, limit: int) -> MessagePage:
        means, filter = self._means, self._definition.filter
        means.check(self.record.name.owner, filter)
        page = self._live_page(limit)
        if page is None:
            self._unfollow()
            page = await means.reading.next_page([], filter, self._position, limit)
        if page.bytes > MOST_BYTES and page.count > 1:
            self._unfollow()
            fewer = max(1, page.count * MOST_BYTES // page.bytes)
            page = await means.reading.next_page(self._feeds, filter, self._position, fewer)
        return page

    def _live_page(self, limit: int) -> MessagePage | None:
        """What the feeds have, if they have all that is behind the position."""
        if self._follower is None:
            return None
        page = self._means.feeds.page(self._feeds, self._definition.filter, self._position, limit)
        if page is not None and all(feed.is_passed_by(page.next) for feed in self._feeds):
            self._follower.has_all()
        return page

    async def _deliver(self, page: MessagePage, *, suspect: bool) -> None:
        request = self._request(page)
        standing: WebhookStanding | None = None
        taken = False
        try:
            while standing is None:
                await self._slot.may_deliver()
                self._posting = True
                standing = await self._posted(page, request, suspect=suspect)
                self._posting = standing is not None
            taken = standing.state is WebhookState.ACTIVE
            if await self._settle(standing) and taken:
                self._position = page.next
        finally:
            self._posting = False
            if not taken:
                self._unfollow()

    async def _posted(self, page: MessagePage, request: bytes, *, suspect: bool) -> WebhookStanding | None:
        """How it stands after a page was sent; None: it was not, for the slot may be another's by now."""
        means, standing = self._means, self.standing
        began = asyncio.get_running_loop().time()
        try:
            status = await means.lines.post(
                self._callback, request, suspect=suspect, still_may=self._slot.still_may
            )
        except NotAsked:
            return None
        except NoAnswer as error:
            kind, why = error.kind, f"the callback {ascii(self._definition.callback)[:200]}: {error}"
        else:
            if 200 <= status < 300:
                metrics.DELIVERED.inc()
                metrics.MESSAGES.inc(page.count)
                metrics.SECONDS.observe(asyncio.get_running_loop().time() - began)
                return standing.taken(page.next_text, page.count)
            kind, why = "callback-status", f"the callback answered {_named(status)}: have it answer 2xx"
            if 300 <= status < 400:
                why += ", from where the subscription says; redirects are not followed"
            if status == HTTPStatus.GONE:
                metrics.FAILED.labels(kind).inc()
                return standing.failed(
                    Trouble(kind, f"{why}, and subscribe again", means.now()),
                    means.patience,
                    wants_no_more=True,
                )
        metrics.FAILED.labels(kind).inc()
        return standing.failed(Trouble(kind, why, means.now()), means.patience)

    def _request(self, page: MessagePage) -> bytes:
        body = b'{"subscription":%b,"previous":"%b",%b' % (
            to_json(self.record.name.id), self.standing.told.encode(), page.json[1:],
        )  # fmt: skip
        signature = hmac.digest(self._secret, body, "sha256").hex()
        return b"%bcontent-length: %d\r\nstreamlease-signature: sha256=%b\r\n\r\n%b" % (
            self._head, len(body), signature.encode(), body,
        )  # fmt: skip

    # ------------------------------------------------------------ how it stands

    def looked(self) -> WebhookStanding | None:
        """How it stands, if what passed by meanwhile was not for it; None: that need not be written."""
        if not self._waiting or self._follower is None or self._follower.is_woken:
            return None
        position = self._means.cursors.text(self._follower.passed(self._feeds, self._position))
        standing = self.standing.looked(position)
        return None if standing is self.standing else standing

    @staticmethod
    def written(standing: WebhookStanding) -> bytes:
        """As it is kept."""
        return standing_json(standing)

    async def _settle(self, standing: WebhookStanding) -> bool:
        """Write how it stands; whether that is how it stands."""
        written = standing_json(standing)
        while True:
            try:
                kept = await self._slot.settle(self.record, written)
                break
            except Fenced:
                raise
            except StreamleaseError as error:
                _logger.warning("webhook %s: its cursor is written later: %s", self.record.name.id, error)
                await asyncio.sleep(AGAIN_SECONDS)
        if kept:
            self.standing = standing
        else:
            self._leaving = True  # its slot is read again, and begins what it is now
        return kept

    async def _go_on(self, error: LostSince) -> None:
        """Behind what Redis lost, which nobody can deliver."""
        self._unfollow()
        _logger.warning("webhook %s: %s", self.record.name.id, error)
        trouble = Trouble("history-lost", str(error), self._means.now(), error.oldest)
        if await self._settle(self.standing.went_on(error.oldest, trouble)):
            self._position = self._means.cursors.parse(error.oldest)

    async def _give_up(self, kind: str, why: str, oldest: str | None = None) -> None:
        try:
            await self._settle(self.standing.given_up(Trouble(kind, why, self._means.now(), oldest)))
        except Fenced:
            return


def _named(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
