"""A zip file that becomes a folder: imports take byte code from it, and what fails changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from streamlease.protocol.errors import Unsupported
from streamlease.spark.setup.unpacking import default_zip, unpack

MODULES = {
    "a/__init__.py": "",
    "a/b.py": "def fail():\n    raise RuntimeError\n",
    "a/broken.py": "def (",
    "a/tests/c.py": "",
    "a/x.txt": "x",
}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "some.zip"
    with zipfile.ZipFile(path, "w") as made:
        for name, text in MODULES.items():
            made.writestr(name, text)
    return path


def _python(path: Path, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_imports_take_byte_code_from_the_folder(archive: Path) -> None:
    program = "import a.b, pathlib; print(pathlib.Path(a.b.__cached__).is_file())"
    assert _python(archive, program).stdout != "True\n"
    assert unpack(archive)
    assert _python(archive, program).stdout == "True\n"


def test_a_traceback_names_the_source_where_it_is(archive: Path) -> None:
    unpack(archive)
    said = _python(archive, "import a.b; a.b.fail()").stderr
    assert f'File "{archive}/a/b.py", line 2, in fail' in said
    assert "raise RuntimeError" in said


def test_everything_is_there_and_the_file_is_kept(archive: Path) -> None:
    before = archive.read_bytes()
    unpack(archive)
    assert {name: (archive / name).read_text() for name in MODULES} == MODULES
    compiled = {path.name.partition(".")[0] for path in archive.rglob("*.pyc")}
    assert compiled == {"__init__", "b"}
    kept = archive.with_name("some.zip.packed")
    assert kept.read_bytes() == before
    assert sorted(archive.parent.iterdir()) == [archive, kept]


def test_others_may_read_the_folder(archive: Path) -> None:
    mask = os.umask(0o022)
    try:
        unpack(archive)
    finally:
        os.umask(mask)
    assert archive.stat().st_mode & 0o777 == 0o755
    assert (archive / "a/b.py").stat().st_mode & 0o777 == 0o644


def test_a_second_time_does_nothing(archive: Path) -> None:
    assert unpack(archive)
    assert not unpack(archive)


def test_what_cannot_be_unpacked_stays(tmp_path: Path) -> None:
    path = tmp_path / "no.zip"
    with pytest.raises(Unsupported, match="cannot be unpacked"):
        unpack(path)
    path.write_text("nothing")
    with pytest.raises(Unsupported, match="cannot be unpacked"):
        unpack(path)
    assert path.read_text() == "nothing"
    assert [*tmp_path.iterdir()] == [path]


def test_what_cannot_be_replaced_stays(archive: Path) -> None:
    """Something is where the file is to be kept, and the folder can go nowhere."""
    before = archive.read_bytes()
    kept = archive.with_name("some.zip.packed")
    kept.mkdir()
    with pytest.raises(Unsupported, match="cannot be unpacked"):
        unpack(archive)
    assert archive.read_bytes() == before
    assert sorted(archive.parent.iterdir()) == [archive, kept]


def test_the_file_is_that_of_spark_home_or_of_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert default_zip() == Path(pyspark.__file__).parent / "python/lib/pyspark.zip"
    assert default_zip().exists()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert default_zip() == tmp_path / "python/lib/pyspark.zip"


def test_the_command_says_what_it_did(archive: Path) -> None:
    words = [sys.executable, "-m", "streamlease.spark.setup.unpacking"]
    for said in ("is a folder now", "is a folder already"):
        done = subprocess.run([*words, str(archive)], capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == f"{archive} {said}\n"
    missing = [*words, str(archive.parent / "none.zip")]
    failed = subprocess.run(missing, capture_output=True, text=True, check=False, timeout=60)
    assert failed.returncode == 1
    assert len(failed.stderr.splitlines()) == 1
