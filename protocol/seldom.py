"""What goes wrong again and again, with the same words, is said once a minute.

For what is tried until it succeeds: what Redis does not answer is tried again several times a second, and
fails as often while Redis is away. What is no repetition, as a message that is refused, is logged each time::

    self._seldom = Seldom(log)
    ...
    except StoreUnavailable as error:
        self._seldom.warning("candidate for %s: %s", group, error, extra={"group": group})

What comes again within the minute is logged for debugging; the next line says how often that was.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from streamlease.protocol.plurals import counted

SECONDS = 60.0
MOST = 1000
"""So many lines are told apart; of more, the oldest are forgotten, and said again."""

Extra = Mapping[str, object]


class Seldom:
    """What one object says, such as a host, of what goes wrong.

    Args:
        clock: seconds; must not run backwards.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._said: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Each kind of line -> when it was said, and how often it came since."""

    def warning(self, text: str, *args: object, extra: Extra | None = None, kind: str | None = None) -> None:
        """As ``Logger.warning``; for debugging, if the same was said within a minute.

        Args:
            kind: what is the same, where words differ in what does not matter; None: what has the same words.
        """
        self._say(logging.WARNING, text, args, extra, kind)

    def error(self, text: str, *args: object, extra: Extra | None = None) -> None:
        """As ``Logger.error``; for debugging, if the same was said within a minute."""
        self._say(logging.ERROR, text, args, extra, None)

    def _say(
        self, level: int, text: str, args: tuple[object, ...], extra: Extra | None, kind: str | None
    ) -> None:
        now, words = self._clock(), text % args if args else text
        kind = words if kind is None else kind
        said_at, since = self._said.get(kind, (now - SECONDS, 0))
        if now - said_at < SECONDS:
            self._said[kind] = said_at, since + 1
            self._log.debug(text, *args, extra=extra, stacklevel=3)
            return
        if since:
            text, args = "%s (and %s since this was said)", (words, counted(since, "time"))
        self._log.log(level, text, *args, extra=extra, stacklevel=3)
        self._said[kind] = now, 0
        self._said.move_to_end(kind)
        if len(self._said) > MOST:
            self._said.popitem(last=False)
