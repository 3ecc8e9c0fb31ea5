"""A session has its cuts fixed, finishes them, and takes an unfinished one up again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from streamlease.protocol.cuts import NO_RANGES, Offset, RangesField, Text
from streamlease.protocol.messages.base import GroupMessage, Progress


class FixCut(GroupMessage):
    """A session wants `ranges` fixed as its cut number `cut`; all cuts up to `finished` are done."""

    type: Literal["fix_cut"] = "fix_cut"
    session: Text
    arrival: Offset
    cut: Annotated[int, Field(ge=1)]
    finished: Offset
    ranges: RangesField
    proposal: Offset = 0
    """Rises with every other wish of the session: the answer tells which one it is to."""
    whole: bool = Field(default=False, exclude_if=lambda whole: not whole)
    """Whether nothing is to be fixed if a part of `ranges` cannot be."""


class CutFixed(GroupMessage):
    """The cut is durable and consists of `ranges`, possibly fewer than asked for."""

    type: Literal["cut_fixed"] = "cut_fixed"
    session: Text
    term: Offset
    cut: Annotated[int, Field(ge=1)]
    ranges: RangesField | None
    """None if they are just those of the `FixCut` of this `proposal`."""
    proposal: Offset = 0
    finished: Offset = 0
    """The newest cut of the session that is finished: if not below `cut`, the session is out of date."""
    progress: tuple[Progress, ...] = ()
    """What is committed of the streams that were asked for and left out, if the session has them."""


class FinishCut(GroupMessage):
    """All cuts of a session up to `finished` went through its sink."""

    type: Literal["finish_cut"] = "finish_cut"
    session: Text
    arrival: Offset
    finished: Offset
    ranges: RangesField | None = NO_RANGES
    """What cut `finished` was: the leader may have lost it. None if the leader of `term`, which alone answers
    then, has fixed it itself and surely knows it."""
    term: Offset = 0


class CutFinished(GroupMessage):
    """Everything up to cut `finished` is committed, as far as it was still the session's."""

    type: Literal["cut_finished"] = "cut_finished"
    session: Text
    term: Offset
    finished: Offset
    progress: tuple[Progress, ...] = ()
    """What is committed of all streams that the session has, if it named the ranges of its cut."""


class ResumeCut(GroupMessage):
    """A restarted session asks which ranges of its unfinished cut are still its own."""

    type: Literal["resume_cut"] = "resume_cut"
    session: Text
    arrival: Offset
    cut: Annotated[int, Field(ge=1)]
    ranges: RangesField = NO_RANGES
    """What the cut was when it was fixed: the leader may have lost it."""


class CutResumed(GroupMessage):
    """Of the session's open cut, `ranges` are still its own."""

    type: Literal["cut_resumed"] = "cut_resumed"
    session: Text
    term: Offset
    cut: Annotated[int, Field(ge=1)]
    ranges: RangesField


class CutRead(GroupMessage):
    """A task has read its slot's part of a cut; of two attempts the higher one counts."""

    type: Literal["cut_read"] = "cut_read"
    session: Text
    cut: Annotated[int, Field(ge=1)]
    slot: Offset
    attempt: Offset
    messages: Offset
    bytes: Offset
    milliseconds: Offset
