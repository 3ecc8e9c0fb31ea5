"""A leader whose stream is in a wanted state of its lease, and operators' acts on it."""

from __future__ import annotations

import json
from typing import Any

from streamlease.protocol.messages import CommandDone, CommandReply
from tests.leader.make import S0, S1, Rig, command, only, ping, progress

STATES = ["granting", "granted", "revoking", "revoked", "absent", "free"]


def in_state(state: str) -> Rig:
    """S0 is in that state; its owner, if it has one, is b1; b2 is connected and holds S1."""
    rig = Rig()
    rig.streams(S0, S1)
    rig.join("b1")
    rig.settle()
    if state != "granting":
        rig.accept()
    rig.join("b2")
    rig.settle()
    if S1 in rig.owners and rig.owners[S1] == "b1" and rig.lease_state(S1) == "revoking":
        rig.give_back(S1, 0)
        rig.accept("b2")
    if state in ("revoking", "revoked"):
        rig.hear(command("drain", borrower="n-b1", request="before"))
        assert rig.lease_state(S0) == "revoking"
        if state == "revoked":
            rig.hear(progress("b1", S0, rig.lease_epoch(S0), 0, final=True), "box-b1")
        rig.hear(command("undrain", borrower="n-b1", request="before too"))
    elif state == "absent":
        rig = successor(rig)
        rig.streams(S0, S1)
        rig.join("b2", attempt=2)
        rig.accept("b2")
    elif state == "free":
        rig.hear(command("pause", request="before"))
        for stream, owner in list(rig.owners.items()):
            if rig.lease_state(stream) == "granting":
                rig.accept(owner)
            rig.give_back(stream, 0)
        rig.hear(command("pause", request="still"))
    if state != "absent":
        assert rig.lease_state(S0) == state
    rig.effects.clear()
    return rig


def successor(rig: Rig) -> Rig:
    """The next leader, with the journal of both."""
    other = rig.crash()
    other.journal = rig.journal + other.journal
    return other


def answer(rig: Rig, act: str, **more: Any) -> tuple[bool, Any]:
    reply = only(rig.hear(command(act, **more), "op"), CommandReply)
    if isinstance(reply, CommandDone):
        return True, json.loads(reply.body)
    return False, reply.error


def alive(rig: Rig, milliseconds: int, *borrowers: str) -> None:
    """Time passes, and the borrowers do what they are told."""
    for _ in range(milliseconds // 100):
        for borrower in borrowers:
            rig.hear(ping(borrower), f"box-{borrower}")
        rig.tick(100)
        rig.accept()
        for stream, owner in rig.owners.items():
            if owner in borrowers and rig.lease_state(stream) in ("revoking", "revoked"):
                rig.give_back(stream, rig.committed(stream))
