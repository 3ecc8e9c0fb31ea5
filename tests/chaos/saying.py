"""What a program under chaos says: one JSON line for each thing that happened, with the time."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

RETRY_SECONDS = 0.2
"""How long a program waits before it tries again."""


def say(**fields: Any) -> None:
    """Say that something happened."""
    sys.stdout.write(json.dumps({**fields, "at": time.time()}) + "\n")
    sys.stdout.flush()
