"""What docs/gateway.md asks of curl, for machines that have none."""

from __future__ import annotations

import sys
import time
import urllib.request


def main() -> None:
    words, headers, data, url, most = sys.argv[1:], {}, None, "", 60.0
    while words:
        word = words.pop(0)
        if word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        elif word == "--data-binary":
            data = words.pop(0).encode()
        elif word == "--max-time":
            most = float(words.pop(0))
        elif not word.startswith("-"):
            url = word
    if data is not None:
        headers.setdefault("Content-Type", "application/x-www-form-urlencoded")
    ends = time.monotonic() + most
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=most) as answer:
        while time.monotonic() < ends and (part := answer.read1()):
            sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()


main()
