"""What docs/gateway.md and examples/other_languages/follow.sh ask of curl, for machines that have none."""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


def main() -> None:
    words, headers, data, url, most = sys.argv[1:], {}, None, "", 60.0
    head = out = None
    while words:
        word = words.pop(0)
        if word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        elif word == "--data-binary":
            data = words.pop(0).encode()
        elif word == "--max-time":
            most = float(words.pop(0))
        elif word == "-D":
            head = Path(words.pop(0))
        elif word == "-o":
            out = Path(words.pop(0))
        elif not word.startswith("-"):
            url = word
    if data is not None:
        headers.setdefault("Content-Type", "application/x-www-form-urlencoded")
    ends = time.monotonic() + most
    answer: Any
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=most)
    except urllib.error.HTTPError as error:
        answer = error
    except OSError as error:
        sys.exit(f"curl: {error}")
    with answer:
        if head is not None:
            lines = [
                f"HTTP/1.1 {answer.status}",
                *(f"{name}: {value}" for name, value in answer.headers.items()),
            ]
            head.write_text("\r\n".join([*lines, "", ""]))
        with sys.stdout.buffer if out is None else out.open("wb") as sink:
            while time.monotonic() < ends and (part := answer.read1()):
                sink.write(part)
                sink.flush()


main()
