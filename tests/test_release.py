"""``scripts/release.py``: from a commit to files that can be checked, and what it refuses."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

from scripts import release
from tests.helm.charts import helm
from tests.house.plan import PROJECT
from tests.servers import ROOT

HOME = "https://forge.example/us/streamlease"
VERSION = PROJECT["project"]["version"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The files that say which version this is."""
    copy = tmp_path / "source"
    for name in (
        "pyproject.toml", "src/streamlease/__init__.py", "helm/streamlease/Chart.yaml", "README.md",
        "CHANGELOG.md", "compose.yaml",
    ):  # fmt: skip
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text((ROOT / name).read_text())
    return copy


@pytest.mark.thorough
@pytest.mark.helm
def test_a_release_can_be_checked_by_whoever_downloads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    key, out = tmp_path / "key", tmp_path / "out"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    assert release.main(["--out", str(out), "--home", HOME, "--key", str(key)]) == 0
    wheel, sdist = f"streamlease-{VERSION}-py3-none-any.whl", f"streamlease-{VERSION}.tar.gz"
    chart, units = f"streamlease-{VERSION}.tgz", f"streamlease-{VERSION}-units.tar.gz"
    made = {path.name for path in out.iterdir()}
    assert made == {wheel, sdist, chart, units, "NOTES.md", "SHA256SUMS", "SHA256SUMS.sig"}
    sums = dict(reversed(line.split("  ")) for line in (out / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == made - {"SHA256SUMS", "SHA256SUMS.sig"}
    for name, digest in sums.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    again = built_again(tmp_path)
    assert again == {name: sums[name] for name in (wheel, sdist, chart, units)}

    allowed = tmp_path / "allowed"
    allowed.write_text(f"release {Path(f'{key}.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", str(allowed), "-I", "release", "-n", "streamlease"]
    verify += ["-s", str(out / "SHA256SUMS.sig")]
    for text, good in (((out / "SHA256SUMS").read_bytes(), True), (b"forged", False)):
        done = subprocess.run(verify, input=text, capture_output=True, check=False)
        assert (done.returncode == 0) is good

    with zipfile.ZipFile(out / wheel) as archive:
        metadata = archive.read(f"streamlease-{VERSION}.dist-info/METADATA").decode()
    assert f"Project-URL: Issues, {HOME}/issues" in metadata
    assert "Classifier: Typing :: Typed" in metadata
    with tarfile.open(out / sdist) as archive:
        members = {one.name.partition("/")[2]: one for one in archive.getmembers()}
    inside = members.keys()
    assert {one.mtime for one in members.values()} == {int(os.environ["SOURCE_DATE_EPOCH"])}
    assert {(one.uid, one.gid, one.uname, one.gname) for one in members.values()} == {(0, 0, "", "")}
    assert {one.mode for one in members.values()} == {0o644, 0o755}
    assert members["run.py"].mode == (0o755 if os.access(ROOT / "run.py", os.X_OK) else 0o644)
    assert {
        "run.py",
        "compose.yaml",
        "scripts/setting_up/packages.py",
        "helm/streamlease/values.yaml",
    } <= inside
    with helm.Chart.load_archive((out / chart).read_bytes()) as packed:
        assert packed.version == VERSION
    with tarfile.open(out / units) as archive:
        assert f"streamlease-{VERSION}/systemd/streamlease-host.service" in archive.getnames()
    notes = (out / "NOTES.md").read_text()
    assert wheel in notes and "ssh-keygen -Y verify" in notes and "redis start" in notes


def built_again(folder: Path) -> dict[str, str]:
    """Digests of what is built of the commit at another path, by somebody whose new files are private."""
    source, out = folder / "elsewhere" / "checkout", folder / "again"
    for one in (source.parent, out):
        one.mkdir()
    before = os.umask(0o077)
    try:
        release.export("HEAD", source)
        release.name_pages(source, HOME)
        release.build_python(source, out)
        release.build_chart(source, out)
        release.pack_units(source, out, VERSION)
    finally:
        os.umask(before)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


def test_a_release_is_signed_with_a_key_of_gnupg_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path(tempfile.mkdtemp(prefix="gpg"))  # the socket of its agent must have a short path
    monkeypatch.setenv("GNUPGHOME", str(home))
    gpg = ["gpg", "--batch", "--quiet"]
    try:
        make = [*gpg, "--passphrase", "", "--quick-generate-key", "release@forge.example", "ed25519", "sign"]
        subprocess.run(make, check=True, capture_output=True)
        (tmp_path / "file").write_text("content")
        release.write_sums(tmp_path)
        release.sign(tmp_path, "release@forge.example")
        signature, sums = tmp_path / "SHA256SUMS.asc", tmp_path / "SHA256SUMS"
        verify = [*gpg, "--verify", str(signature), str(sums)]
        assert subprocess.run(verify, check=False, capture_output=True).returncode == 0
        sums.write_text("forged")
        assert subprocess.run(verify, check=False, capture_output=True).returncode != 0
        release.write_notes(ROOT, tmp_path, VERSION, "release@forge.example")
        assert "gpg --verify SHA256SUMS.asc SHA256SUMS" in (tmp_path / "NOTES.md").read_text()
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], check=False, capture_output=True)
        shutil.rmtree(home)


def test_all_files_say_the_same_version(source: Path) -> None:
    assert release.checked_version(source) == VERSION
    for name in (
        "src/streamlease/__init__.py",
        "helm/streamlease/Chart.yaml",
        "CHANGELOG.md",
        "compose.yaml",
    ):
        text = (source / name).read_text()
        (source / name).write_text(text.replace(VERSION, "9.9.9"))
        with pytest.raises(release.ReleaseError, match=f"version {VERSION}, and {name} does not"):
            release.checked_version(source)
        (source / name).write_text(text)


@pytest.mark.parametrize("home", ["", "http://forge.example/us", "https://", 'https://a"b', "https://a/"])
def test_an_address_that_is_none_is_refused(source: Path, home: str) -> None:
    with pytest.raises(release.ReleaseError, match="--home"):
        release.name_pages(source, home)


def test_what_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.main(["--commit", "no-such-commit", "--out", str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()
    (tmp_path / "docker").write_text("#!/bin/sh\necho first >&2; echo no engine >&2; exit 1\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(release.ReleaseError, match="cannot build here/us:1: no engine"):
        release.build_images(tmp_path, tmp_path, "1", "here/us")
    with pytest.raises(release.ReleaseError, match="cannot sign"):
        release.sign(tmp_path, "no-such-key")
    assert capsys.readouterr().err.count("\n") == 1


def test_images_are_told_by_their_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = "sha256:" + "0" * 64
    (tmp_path / "docker").write_text(
        f'#!{sys.executable}\nimport sys\nif "inspect" in sys.argv: print(\'["here/us@{digest}", "b@x"]\')\n'
    )
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    release.build_images(tmp_path, tmp_path, "1", "here/us")
    told = (tmp_path / "images.json").read_text()
    assert told.count(digest) == 3 and '"here/us:1-spark"' in told
