"""Files that executors fetch, from their disk or a bucket: what is run is what was signed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamlease.admin.queries.job_options import uploads
from streamlease.protocol.errors import InvalidInput, QueryRefused
from streamlease.queries.core.signed_orders import JobFile
from streamlease.queries.fetched_files import fetch, fetched_file
from streamlease.streams.archive.files import places
from tests.buckets import bucket_server, put
from tests.queries.executors import Executors

PROGRAM = b"print('from the bucket', open('model.bin').read())\n"
HASH = hashlib.sha256(PROGRAM).hexdigest()


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    with bucket_server() as environment:
        yield environment


@pytest.fixture
def endpoint(bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    places._files.cache_clear()
    yield bucket["AWS_ENDPOINT_URL"]
    places._files.cache_clear()


def test_what_lies_in_a_bucket_is_fetched_as_it_was_signed(endpoint: str, tmp_path: Path) -> None:
    put(endpoint, "data/jobs/job.py", PROGRAM)
    file = fetched_file("s3://data/jobs/job.py")
    assert file == JobFile(name="job.py", sha256=HASH, size=len(PROGRAM), uri="s3://data/jobs/job.py")
    fetch(file, tmp_path / "fetched.py")
    assert (tmp_path / "fetched.py").read_bytes() == PROGRAM
    put(endpoint, "data/jobs/job.py", PROGRAM + b"import os\n")
    with pytest.raises(QueryRefused, match=rf"job.py is not what was signed: .* not {HASH[:12]}"):
        fetch(file, tmp_path / "altered.py")


def test_what_only_executors_reach_is_named_with_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    with pytest.raises(InvalidInput, match=r"cannot be read here \(there is no such file\).*#sha256=HEX"):
        fetched_file(f"file://{path}")
    file = fetched_file(f"file://{path}#sha256={HASH}")
    assert file == JobFile(name="job.py", sha256=HASH, uri=f"file://{path}")
    with pytest.raises(QueryRefused, match=r"job.py cannot be read: there is no such file"):
        fetch(file, tmp_path / "none.py")
    path.write_bytes(PROGRAM)
    fetch(file, tmp_path / "one.py")
    path.write_bytes(b"other")
    with pytest.raises(QueryRefused, match="is not what was signed"):
        fetch(file, tmp_path / "other.py")
    with pytest.raises(QueryRefused, match="says no hash"):
        fetch(JobFile(name="job.py", uri=f"file://{path}"), tmp_path / "unsigned.py")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("file://relative/x.py", "is no place"),
        ("file:///a/../x.py", "is no place"),
        ("s3://data", "is no place"),
        ("s3://key:secret@data/x.py", "is no place"),
        ("gs://data/x y.py", "is no place"),
        ("s3://data/jobs/.hidden", "a file cannot be called"),
        ("file:///a/x.py#sha256=abc", "the 64 hexadecimal digits"),
        ("s3://data/none.py", "there is no such file"),
        ("s3://nowhere/none.py", "cannot be read here"),
    ],
)
def test_what_is_no_place_is_told_in_one_line(endpoint: str, place: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        uploads(place, [])
    assert "\n" not in str(caught.value)


@pytest.mark.cluster
def test_a_program_in_a_bucket_and_its_file_on_the_executor_run(
    bucket: dict[str, str], executors: Executors
) -> None:
    put(bucket["AWS_ENDPOINT_URL"], "data/run.py", PROGRAM)
    model = executors.folder / "model.bin"
    model.write_text("of this machine")
    executors.start("one", **bucket)
    words = ["submit", "s3://data/run.py", "--wait", "--json"]
    done = executors.command(*words, "--file", f"file://{model}", **bucket)
    assert done.code == 0, done.document["reason"]
    assert executors.output(done.document["query"]) == "from the bucket of this machine\n"
    altered = executors.command(*words, "--file", f"file://{model}#sha256={HASH}", **bucket)
    assert altered.document["outcome"] == "aborted"
    assert "model.bin is not what was signed" in altered.document["reason"]
