"""Make a release: ``scripts/release.py --home https://... [--images REPOSITORY] [--key KEY]``, in ``.venv``.

From a commit, never from what lies about in the working tree, into ``dist/VERSION``:

================================ ====================================================================
``streamlease-V.tar.gz``         the source distribution
``streamlease-V-....whl``        the wheel; both with the addresses of the project, from ``--home``
``streamlease-V.tgz``            the Helm chart
``streamlease-V-units.tar.gz``   compose.yaml and the units of systemd
``images.json``                  with ``--images``: digests of the images, built and pushed by Docker
``NOTES.md``                     what changed, from CHANGELOG.md, and how to check what was downloaded
``SHA256SUMS``                   of all these; with ``--key`` also ``SHA256SUMS.sig``, or ``.asc``
================================ ====================================================================

A key is a file with a private key of SSH, or the id of one of GnuPG. Times in the archives are that of the
commit, and owners and rights are nobody's in particular, so that the same commit gives the same bytes.
Nothing but images is published, and only with ``--images``.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "Homepage": "",
    "Documentation": "/tree/main/docs",
    "Source": "",
    "Issues": "/issues",
    "Changelog": "/blob/main/CHANGELOG.md",
}
"""The addresses of the project below ``--home``, as forges lay them out."""

IMAGES = {"": "", "-spark": "spark", "-demo": "demo"}
"""Endings of tags, and the extras of the Dockerfile."""

ZIP_BEGINS = 315532800
"""1980, in seconds since 1970: a wheel is a zip file, which knows no earlier time."""

UNITS = ("compose.yaml", "systemd")


class ReleaseError(Exception):
    """A release cannot be made. One line: what is wrong and what to do."""


def run(command: Sequence[str | Path], *, cwd: Path = ROOT, failed: str) -> str:
    """What a program prints.

    Raises:
        ReleaseError: it is not there, or it fails.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", "0")}
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ReleaseError(f"{failed}: {error.strerror}: {command[0]}") from None
    if done.returncode != 0:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise ReleaseError(f"{failed}: {said[-1].strip() if said else f'status {done.returncode}'}")
    return done.stdout


def export(commit: str, into: Path) -> None:
    """The files of that commit; their time is its time from here on."""
    archive = into.with_suffix(".tar")
    run(["git", "archive", "--output", archive, commit], failed=f"there is no commit {commit}")
    os.environ["SOURCE_DATE_EPOCH"] = run(
        ["git", "show", "--no-patch", "--format=%ct", commit], failed=f"there is no commit {commit}"
    ).strip()
    with tarfile.open(archive) as files:
        files.extractall(into, filter="fully_trusted")


def checked_version(source: Path) -> str:
    """The version, which stands in several files.

    Raises:
        ReleaseError: they do not agree.
    """
    version: str = tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"]
    wanted = {
        "src/streamlease/__init__.py": rf'^__version__ = "{re.escape(version)}"$',
        "helm/streamlease/Chart.yaml": rf"^version: {re.escape(version)}$",
        "README.md": rf"streamlease-{re.escape(version)}-py3-none-any\.whl",
        "CHANGELOG.md": rf"^## {re.escape(version)}\b",
        "compose.yaml": rf"streamlease:{re.escape(version)}\b",
    }
    for name, pattern in wanted.items():
        if not re.search(pattern, (source / name).read_text(), re.MULTILINE):
            raise ReleaseError(f"pyproject.toml says version {version}, and {name} does not: make them agree")
    return version


def name_pages(source: Path, home: str | None) -> None:
    """Write the addresses of the project into its metadata."""
    if home is None:
        return
    if not re.fullmatch(r"https://[^\s\"\\]+[^\s\"\\/]", home):
        raise ReleaseError(
            f"--home is {home!r}: give an address such as https://forge.example/us/streamlease"
        )
    lines = "".join(f'{name} = "{home}{path}"\n' for name, path in PAGES.items())
    file = source / "pyproject.toml"
    file.write_text(
        file.read_text().replace("[project.scripts]", f"[project.urls]\n{lines}\n[project.scripts]", 1)
    )


def build_python(source: Path, out: Path) -> None:
    for kind in ("sdist", "wheel"):
        program = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
        run([sys.executable, "-c", program], cwd=source, failed=f"cannot build the {kind}")
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    with tarfile.open(sdist) as archive:
        opened = {one: archive.extractfile(one) for one in archive.getmembers() if one.isfile()}
        files = {one.name: content.read() for one, content in opened.items() if content is not None}
        programs = {one.name for one in opened if one.mode & 0o100}
    pack(sdist, files, programs)
    pack_wheel(wheel)


def build_chart(source: Path, out: Path) -> None:
    try:
        helm = importlib.import_module("helm_python")
    except ImportError:
        raise ReleaseError("the chart is packed by helm-python-sdk: run 'python3 run.py setup'") from None
    try:
        made = Path(helm.package(source / "helm" / "streamlease", destination=out))
    except helm.HelmError as error:
        raise ReleaseError(f"cannot pack the chart: {error}") from None
    with tarfile.open(made) as archive:  # Helm writes the time of packing into it
        files = {one.name: archive.extractfile(one) for one in archive.getmembers() if one.isfile()}
        pack(made, {name: opened.read() for name, opened in files.items() if opened is not None})


def pack_wheel(wheel: Path) -> None:
    """Write the files of a wheel again, as they would be whoever had built it."""
    moment = time.gmtime(max(int(os.environ["SOURCE_DATE_EPOCH"]), ZIP_BEGINS))[:6]
    packed = io.BytesIO()
    with zipfile.ZipFile(wheel) as made, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as again:
        for one in made.infolist():
            entry = zipfile.ZipInfo(one.filename, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if one.external_attr >> 16 & 0o100 else 0o100644) << 16
            again.writestr(entry, made.read(one))
    wheel.write_bytes(packed.getvalue())


def pack(archive: Path, files: Mapping[str, bytes], programs: Collection[str] = ()) -> None:
    """An archive that is the same whenever, wherever and by whomever it is made.

    Args:
        programs: those of the files that can be run.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if name in programs else 0o644
            entry.mtime = int(os.environ["SOURCE_DATE_EPOCH"])
            tar.addfile(entry, io.BytesIO(content))
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def pack_units(source: Path, out: Path, version: str) -> None:
    paths = [path for name in UNITS for path in [source / name, *(source / name).glob("*")] if path.is_file()]
    files = {f"streamlease-{version}/{path.relative_to(source)}": path.read_bytes() for path in paths}
    pack(out / f"streamlease-{version}-units.tar.gz", files)


def build_images(source: Path, out: Path, version: str, repository: str) -> None:
    """Build and push every image; a registry tells its digest."""
    made = {}
    for ending, extras in IMAGES.items():
        tag = f"{repository}:{version}{ending}"
        build = ["docker", "build", "--tag", tag, "--build-arg", f"EXTRAS={extras}", "."]
        run(build, cwd=source, failed=f"cannot build {tag}")
        run(["docker", "push", tag], failed=f"cannot push {tag}")
        inspect = ["docker", "image", "inspect", "--format", "{{json .RepoDigests}}", tag]
        digests = json.loads(run(inspect, failed=f"cannot look at {tag}"))
        made[tag] = next(one.partition("@")[2] for one in digests if one.startswith(f"{repository}@"))
    (out / "images.json").write_text(json.dumps(made, indent=1) + "\n")


def changes(source: Path, version: str) -> str:
    """What CHANGELOG.md says of that version."""
    text = (source / "CHANGELOG.md").read_text()
    _, _, rest = text.partition(f"\n## {version}")
    return re.split(r"^## ", rest.partition("\n")[2], flags=re.MULTILINE)[0].strip()


def write_notes(source: Path, out: Path, version: str, key: str | None) -> None:
    checks = ["sha256sum --check SHA256SUMS"]
    if key is not None and Path(key).is_file():
        checks.append(
            "ssh-keygen -Y verify -f ALLOWED_SIGNERS -I release -n streamlease -s SHA256SUMS.sig < SHA256SUMS"
        )
    elif key is not None:
        checks.append("gpg --verify SHA256SUMS.asc SHA256SUMS")
    files = "\n".join(f"- `{path.name}`" for path in sorted(out.iterdir()))
    (out / "NOTES.md").write_text(
        f"# Streamlease {version}\n\n{changes(source, version)}\n\n## Files\n\n{files}\n\n"
        f"To check what was downloaded:\n\n```\n" + "\n".join(checks) + "\n```\n"
    )


def write_sums(out: Path) -> None:
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(out.iterdir())
    ]
    (out / "SHA256SUMS").write_text("".join(lines))


def sign(out: Path, key: str) -> None:
    sums = out / "SHA256SUMS"
    if Path(key).is_file():
        command: list[str | Path] = [
            "ssh-keygen",
            "-Y",
            "sign",
            "-f",
            Path(key).absolute(),
            "-n",
            "streamlease",
            sums,
        ]
        run(command, failed="cannot sign")
    else:
        run(["gpg", "--batch", "--armor", "--detach-sign", "--local-user", key, sums], failed="cannot sign")


def release(options: argparse.Namespace) -> Path:
    """Make all of it; where it is."""
    with tempfile.TemporaryDirectory(prefix="streamlease-release-") as scratch:
        source = Path(scratch) / "source"
        export(options.commit, source)
        version = checked_version(source)
        out = Path(options.out or ROOT / "dist" / version).absolute()
        made = Path(scratch) / "made"
        made.mkdir()
        name_pages(source, options.home)
        build_python(source, made)
        build_chart(source, made)
        pack_units(source, made, version)
        if options.images is not None:
            build_images(source, made, version, options.images)
        write_notes(source, made, version, options.key)
        write_sums(made)
        if options.key is not None:
            sign(made, options.key)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(made, out)  # whole, or not at all
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make a release from a commit.")
    parser.add_argument("--commit", default="HEAD", help="what to release; default HEAD")
    parser.add_argument("--home", metavar="URL", help="where the project is; its pages go into the metadata")
    parser.add_argument("--images", metavar="REPOSITORY", help="build and push the images there, with Docker")
    parser.add_argument(
        "--key", help="sign with this: a file with a private key of SSH, or the id of one of GnuPG"
    )
    parser.add_argument("--out", metavar="FOLDER", help="default: dist/VERSION")
    try:
        out = release(parser.parse_args(arguments))
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    for path in sorted(out.iterdir()):
        sys.stdout.write(f"{path.stat().st_size:>10,}  {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
