"""Requests, answers and errors of the tests, and handlers for them."""

from __future__ import annotations

import asyncio
from collections import Counter

from pydantic import BaseModel, Field, field_validator

from streamlease.protocol.errors import ServiceError


class Score(BaseModel):
    x: int


class Scored(BaseModel):
    y: float
    by: str = ""


class TooHigh(BaseModel):
    highest: int


class Even(BaseModel):
    x: int

    @field_validator("x")
    @classmethod
    def _even(cls, x: int) -> int:
        if x % 2:
            raise ValueError("it is odd")
        return x


class Blob(BaseModel):
    data: str = Field(default="")


async def score(request: Score) -> Scored:
    if request.x > 1000:
        raise ServiceError(f"{request.x} is too high", TooHigh(highest=1000))
    return Scored(y=request.x / 2)


class Scorer:
    """A server of which it is known what it did."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.ran: Counter[int] = Counter()
        self.cancelled: list[int] = []
        self.began = asyncio.Event()
        self.stopped = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def score(self, request: Score) -> Scored:
        self.ran[request.x] += 1
        self.began.set()
        try:
            await self.may_go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.x)
            self.stopped.set()
            raise
        return Scored(y=request.x / 2, by=self.name)
