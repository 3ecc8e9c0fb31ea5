"""A server that speaks S3, for tests of what lies in buckets."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer
from pyarrow import fs

REGION = "us-east-1"


@contextmanager
def bucket_server() -> Iterator[dict[str, str]]:
    """A server with the bucket ``data``; the environment in which it is found."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        urllib.request.urlopen(urllib.request.Request(f"{url}/data", method="PUT"), timeout=30).close()
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        server.stop()


def put(endpoint: str, path: str, content: bytes) -> None:
    """Put an object into a bucket."""
    store = fs.S3FileSystem(endpoint_override=endpoint, access_key="key", secret_key="secret", region=REGION)
    with store.open_output_stream(path) as file:
        file.write(content)
