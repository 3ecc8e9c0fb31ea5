"""The page about testing one's own program: its blocks are files of one folder, whose tests pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
SETTINGS = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""
PROGRAM = """
async def bill(client, write):
    async with client.subscribe("$shared/billing/orders/#", start="earliest") as orders:
        async for batch in orders:
            await batch.commit()  # before anything is written
            for message in batch.messages:
                await write(message.key, float(message.payload))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the page."""
    blocks = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert [name for name, _ in blocks] == [
        "billing.py", "test_billing.py", "test_crashes.py", "conftest.py", "test_shop.py",
    ]  # fmt: skip
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", *words]
    environment = {**os.environ, "PATH": path, "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.slow
def test_the_tests_of_the_page_pass(folder: Path) -> None:
    done = run(folder)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_they_find_a_program_that_loses_orders_when_it_dies(folder: Path) -> None:
    (folder / "billing.py").write_text(PROGRAM)
    done = run(folder, "test_billing.py", "test_crashes.py")
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "test_each_order_is_billed_though_a_consumer_dies" in done.stdout
