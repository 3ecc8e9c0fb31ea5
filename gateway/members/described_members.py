"""The addresses of members in the description of the gateway's interface (``gateway.open_api``)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from streamlease.gateway.core.questions import MOST_WAIT
from streamlease.gateway.members.core.member_requests import (
    MESSAGES,
    MOST_MESSAGES,
    CommitBody,
    FailBody,
    JoinBody,
)
from streamlease.protocol.messages import Verdict

Described = dict[str, Any]


class JoinedMember(BaseModel):
    """A member, by whose id all further requests go."""

    member: str
    session_timeout: float


class CommittedOffsets(BaseModel):
    """Of each stream, all below the offset is done."""

    committed: dict[str, int]


class MessageVerdict(BaseModel):
    """What becomes of a message that failed."""

    verdict: Verdict


MEMBER_MODELS: tuple[type[BaseModel], ...] = (
    JoinBody, CommitBody, FailBody, JoinedMember, CommittedOffsets, MessageVerdict,
)  # fmt: skip


def member_paths(page: Described, problems: Described) -> Described:
    """The paths below ``/v1/groups/``.

    Args:
        page: the answer that has messages.
        problems: the answers that are errors, by status.
    """
    group = _in_path("group", "A group: with the filter it names $shared/GROUP/FILTER.")
    member = _in_path("member", "What the answer to joining said.")

    def act(name: str, what: str, parts: Described) -> Described:
        answers = {**parts.pop("responses"), **problems}
        return {"operationId": name, "summary": what, **parts, "responses": answers}

    below = "/v1/groups/{group}/members/{member}"
    fetch = {
        "parameters": [
            group,
            member,
            _asked("max", {"type": "integer", "minimum": 1, "maximum": MOST_MESSAGES, "default": MESSAGES}),
            _asked("wait", {"type": "number", "minimum": 0, "maximum": MOST_WAIT, "default": 0}),
            {
                **_asked("since", {"type": "string", "minLength": 1}),
                "description": "`next` of an answer that came; without it, behind what is committed.",
            },
        ],
        "responses": {"200": page},
    }
    return {
        "/v1/groups/{group}/members": {
            "post": act(
                "join", "Become a member of a group.", _posted([group], JoinBody, "201", JoinedMember)
            )
        },
        f"{below}/messages": {
            "get": act("fetch", "What was handed out and is not committed, and what comes behind it.", fetch)
        },
        f"{below}/commit": {
            "post": act(
                "commit",
                "All below an offset of each stream is done.",
                _posted([group, member], CommitBody, "200", CommittedOffsets),
            )
        },
        f"{below}/fail": {
            "post": act(
                "fail",
                "A message could not be processed; all before it in its stream is done.",
                _posted([group, member], FailBody, "200", MessageVerdict),
            )
        },
        below: {
            "delete": act(
                "leave_group",
                "Leave the group.",
                {"parameters": [group, member], "responses": {"204": {"description": "It has left."}}},
            )
        },
    }


def _posted(
    parameters: list[Described], body: type[BaseModel], status: str, answer: type[BaseModel]
) -> Described:
    told = {"description": answer.__doc__ or "", "content": {"application/json": {"schema": _model(answer)}}}
    return {
        "parameters": parameters,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _model(body)}}},
        "responses": {status: told},
    }


def _in_path(name: str, what: str) -> Described:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "description": what, "schema": schema}


def _asked(name: str, schema: Described) -> Described:
    return {"name": name, "in": "query", "schema": schema}


def _model(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
