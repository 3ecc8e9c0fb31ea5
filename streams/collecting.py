"""Python's garbage collector rests while very many objects that last are made in one turn.

Leases of 10,000 streams are some 70,000 objects that stay. Made with the collector on, they are looked
through a hundred times while they come, and all objects of the process with them each time these have become
a quarter more; that was a tenth of the processor time until the last commit. It was half of what it took to
publish lists of messages over as many streams. What a round reads of many streams are thousands of lists
that live until they have become messages; looked through before that, they count as objects that last, and
bring the next look through all objects nearer. The messages of a batch live until their batch has been
worked through; looking through them meanwhile was two fifths of what consuming took. The collector belongs
to the program, so it rests only where hundreds of streams are read, or leases come, or parts go, or messages
are made, at once, never across an ``await``, and not where the program has switched it off. A thread of the
program that switches it off within these milliseconds finds it switched on again.
"""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext

MANY = 250
"""Of fewer streams, or messages, the objects are no burden."""


class _AtRest(AbstractContextManager[None]):
    def __enter__(self) -> None:
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()


_AT_REST, _AS_IT_IS = _AtRest(), nullcontext()


def collector_at_rest(many: int) -> AbstractContextManager[None]:
    """Nothing is collected meanwhile, if it is about so many streams or messages. To be entered at once."""
    return _AT_REST if many >= MANY and gc.isenabled() else _AS_IT_IS
