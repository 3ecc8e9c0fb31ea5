"""What the journal of a group says has happened, as the console shows it."""

from __future__ import annotations

from typing import Any, assert_never

from streamlease.leader.core.state.operated import Acted, BorrowerLeft, KeptAct, RefusedAct
from streamlease.leader.core.state.records import (
    Attested,
    Committed,
    CutClosed,
    CutOpened,
    DeadLettered,
    Expired,
    Failed,
    HandedOver,
    Leased,
    Record,
    Released,
    Returned,
    SessionForgotten,
    StreamsAdded,
    StreamsAdvanced,
    StreamsForgotten,
    TermStarted,
    Truncated,
)


def act_of(record: Record) -> KeptAct | None:
    """The act that a record is of."""
    if isinstance(record, RefusedAct):
        return record
    return record.kept() if isinstance(record, Acted | Expired) else None


def event_of_act(act: KeptAct) -> dict[str, Any]:
    """The event of an act that the state of a group keeps."""
    what = f" of {act.what}" if act.what else ""
    end = f" was refused: {act.error}" if isinstance(act, RefusedAct) else ""
    return {"at": act.at, "what": "act", "text": f"{act.act} by {act.who}{what}{end}"}


def event_of(record: Record, at: int) -> dict[str, Any] | None:
    """The event of a record that was written at that time (ms since 1970); None: nobody wants to see it."""
    match record:
        case TermStarted():
            return {"at": at, "what": "term", "text": f"{record.host} leads in term {record.term}"}
        case Leased():
            return {"at": at, "what": "lease", "stream": record.stream, "to": record.name}
        case HandedOver():
            how = "hand-over" if record.clean else "take-over"
            return {"at": at, "what": how, "stream": record.stream, "ms": record.milliseconds}
        case Acted():
            return event_of_act(record.kept()) | {"at": at}
        case RefusedAct():
            return event_of_act(record)
        case Failed():
            text = f"offset {record.offset} of {record.stream} failed: {record.cause}"
            return {"at": at, "what": "failure", "text": text}
        case DeadLettered():
            text = f"offset {record.offset} of {record.stream} is dead letter {record.into}@{record.at}"
            return {"at": at, "what": "dead letter", "text": text}
        case Expired():
            return event_of_act(record.kept())
        case BorrowerLeft():
            return {"at": at, "what": "consumer", "text": f"{record.name} is gone for good"}
        case Truncated():
            text = f"retention removed what was not consumed of {len(record.floors)} streams"
            return {"at": at, "what": "truncated", "text": text}
        case StreamsAdded() | StreamsAdvanced() | StreamsForgotten() | Attested():
            return None
        case Released() | Committed() | CutOpened() | CutClosed() | SessionForgotten():
            return None
        case Returned():
            return None
        case _:
            assert_never(record)
