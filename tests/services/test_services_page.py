"""The two programs of docs/services.md, as they stand there."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "services.md"


async def test_the_programs_of_the_page_do_what_it_says(embedded_redis_url: str, tmp_path: Path) -> None:
    programs = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [name for name, _ in programs] == ["server.py", "caller.py"]
    for name, text in programs:
        (tmp_path / name).write_text(text.replace("wait=5,", "wait=60,"))  # both start now, on a busy machine
    environment = {**os.environ, "STREAMLEASE_REDIS_URL": embedded_redis_url}
    server = await asyncio.create_subprocess_exec(sys.executable, tmp_path / "server.py", env=environment)
    try:
        caller = await asyncio.create_subprocess_exec(
            sys.executable, tmp_path / "caller.py", env=environment, stdout=subprocess.PIPE
        )
        async with asyncio.timeout(60):
            said, _ = await caller.communicate()
        assert said.decode().splitlines() == ["1.5", "2000 is too high 1000"]
        assert server.returncode is None
    finally:
        server.terminate()
        await server.wait()
