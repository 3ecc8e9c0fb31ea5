"""Where a query is, and every legal move of it: the table of its machine.

Where two events lead to the same place they are one move; who decides which one it is, is `query_machine`.

::

    new --> starting --> serving                        ends from anywhere, or fails with its session

    what follows a cut?       serving --> [finishing --> [overtaken] --> following] --> looking --> asking
                              asking --> [overtaken | checking]
    what is read of a cut?    serving --> resuming --> [finishing --> [regaining --> asking] --> [losing]]
                              losing --> resuming

    From each of them it is serving again with the answer; what stands in brackets may be left out.
"""

from __future__ import annotations

from enum import Enum


class QueryState(Enum):
    """Where a query is."""

    NEW = "new"
    STARTING = "starting"
    """It connects, declares its group, and arrives there."""
    SERVING = "serving"
    """Spark asks for nothing; streams come and go."""
    FINISHING = "finishing"
    """The leader is asked up to which cut all went through."""
    OVERTAKEN = "overtaken"
    """It knows of finished cuts that the checkpoint lacks: is that written later?"""
    FOLLOWING = "following"
    """The leader is asked for a cut that no checkpoint names."""
    LOOKING = "looking"
    """It looks for something to read."""
    ASKING = "asking"
    """The leader is asked to fix a cut."""
    CHECKING = "checking"
    """A cut is fixed, and streams went on without the query: is something gone?"""
    RESUMING = "resuming"
    """The leader is asked what of an unfinished cut is still the query's."""
    REGAINING = "regaining"
    """Nothing is: it waits for streams in which the cut is pinned."""
    LOSING = "losing"
    """Others took some of it over: that must be known for long enough."""
    CONFIRMING = "confirming"
    """It leaves, once the leader has confirmed its last cut."""
    LEAVING = "leaving"
    """It gives its streams back."""
    FAILED = "failed"
    """Its session ended by an error, which every call ends with."""
    ENDED = "ended"


class QueryMove(Enum):
    """What can move a query."""

    BEGUN = "begun"
    """Spark names the newest cut of its checkpoint."""
    ARRIVED = "arrived"
    ANSWERED = "answered"
    """Spark's call is answered, or over."""
    FIXED_BEFORE = "fixed before"
    """The cut that went through was fixed by an earlier process."""
    CONFIRMED = "confirmed"
    """All went through up to the cut that the checkpoint names."""
    BEHIND = "behind"
    """All went through beyond that."""
    WRITTEN_LATER = "written later"
    """The checkpoint is behind because Spark writes it later."""
    WANTED = "wanted"
    """The next cut is made of what waits."""
    PROPOSED = "proposed"
    PASSED_OVER = "passed over"
    """The leader went on in some streams without the query."""
    UNFINISHED = "unfinished"
    """Spark reads a cut of an earlier process."""
    FEWER = "fewer"
    """Not all of it is the query's any more."""
    NONE_LEFT = "none left"
    TAKEN_OVER = "taken over"
    AGAIN = "again"
    """Another leader may know nothing of the take-over."""
    STOPPED = "stopped"
    """The query stops, and the leader has to confirm its last cut first."""
    SETTLED = "settled"
    """The query stops, and the leader knows of all that went through."""
    SILENCED = "silenced"
    """The query ends without a word."""
    OVER = "over"
    """Its session ended by an error."""


_S, _M = QueryState, QueryMove
CALLED = (
    _S.FINISHING, _S.OVERTAKEN, _S.FOLLOWING, _S.LOOKING, _S.ASKING, _S.CHECKING, _S.RESUMING, _S.REGAINING,
    _S.LOSING,
)  # fmt: skip
"""Spark waits, and there is a session."""

QUERY_TRANSITIONS: dict[tuple[QueryState, QueryMove], QueryState] = {
    (_S.NEW, _M.BEGUN): _S.STARTING,
    (_S.STARTING, _M.ARRIVED): _S.SERVING,
    (_S.STARTING, _M.ANSWERED): _S.NEW,
    # What follows a cut?
    (_S.SERVING, _M.FIXED_BEFORE): _S.FINISHING,
    (_S.SERVING, _M.WANTED): _S.LOOKING,
    (_S.FINISHING, _M.CONFIRMED): _S.FOLLOWING,
    (_S.FINISHING, _M.BEHIND): _S.OVERTAKEN,
    (_S.OVERTAKEN, _M.WRITTEN_LATER): _S.FOLLOWING,
    (_S.FOLLOWING, _M.WANTED): _S.LOOKING,
    (_S.LOOKING, _M.PROPOSED): _S.ASKING,
    (_S.ASKING, _M.BEHIND): _S.OVERTAKEN,
    (_S.ASKING, _M.PASSED_OVER): _S.CHECKING,
    # What of an unfinished cut is to be read?
    (_S.SERVING, _M.UNFINISHED): _S.RESUMING,
    (_S.RESUMING, _M.FEWER): _S.FINISHING,
    (_S.FINISHING, _M.NONE_LEFT): _S.REGAINING,
    (_S.FINISHING, _M.TAKEN_OVER): _S.LOSING,
    (_S.REGAINING, _M.PROPOSED): _S.ASKING,
    (_S.REGAINING, _M.TAKEN_OVER): _S.LOSING,
    (_S.ASKING, _M.TAKEN_OVER): _S.LOSING,
    (_S.LOSING, _M.AGAIN): _S.RESUMING,
    **{(state, _M.ANSWERED): _S.SERVING for state in CALLED},
    # The end.
    **{(state, _M.STOPPED): _S.CONFIRMING for state in (_S.SERVING, *CALLED)},
    **{(state, _M.SETTLED): _S.LEAVING for state in (_S.SERVING, *CALLED, _S.CONFIRMING)},
    **{
        (state, _M.SILENCED): _S.ENDED
        for state in (_S.NEW, _S.STARTING, _S.SERVING, *CALLED, _S.CONFIRMING, _S.LEAVING, _S.FAILED)
    },
    **{(state, _M.OVER): _S.FAILED for state in (_S.STARTING, _S.SERVING, *CALLED)},
}
"""All legal moves of a query; every other pair is a defect, and an event that would need one is refused."""
