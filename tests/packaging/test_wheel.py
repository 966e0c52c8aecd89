"""What the wheel holds: the whole program, in one import package."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from tests.packaging.conftest import COMMAND_S, COMMIT, ROOT, build_wheel, run

PACKAGES = ("api", "bench", "engine", "storage")


def members(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel by name, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name
        }


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(
    checkout: Path, wheel: Path
) -> None:
    expected = {
        f"mailprobe/{path.relative_to(checkout)}": path.read_bytes()
        for package in PACKAGES
        for path in (checkout / package).rglob("*")
        if path.is_file()
    }
    for name in ("__init__.py", "asgi.py", "release.py", "py.typed"):
        expected[f"mailprobe/{name}"] = (checkout / "mailprobe" / name).read_bytes()
    expected["mailprobe/commit.txt"] = f"{COMMIT}\n".encode()
    for page in (checkout / "docs").glob("*.md"):  # `api/pages/documents` is a link to them
        expected[f"mailprobe/api/pages/documents/{page.name}"] = page.read_bytes()
    version = wheel.name.split("-")[1]
    manual = f"mailprobe-{version}.data/data/share/man/man1/mailprobe.1"
    expected[manual] = (checkout / "dev/mailprobe.1").read_bytes()
    held = members(wheel)
    assert set(held) == set(expected)
    assert held == expected


def test_the_wheel_has_the_licence_and_the_notice(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
        folder = f"{metadata.rpartition('/')[0]}/licenses"
        for name in ("LICENSE", "NOTICE", "api/pages/dashboard/static/vendor/LICENSES.txt"):
            assert archive.read(f"{folder}/{name}") == (ROOT / name).read_bytes()
            assert f"License-File: {name}" in lines
    assert "License-Expression: Apache-2.0" in lines
    assert "Author: mailprobe contributors" in lines


def test_a_release_names_the_repository_that_built_it(checkout: Path, tmp_path: Path) -> None:
    """Its workflow runs with both names set; elsewhere nobody knows where the source is published."""
    built_at = {"GITHUB_SERVER_URL": "https://forge.test", "GITHUB_REPOSITORY": "ann/mailprobe"}
    code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, tmp_path, at=checkout, env=built_at)
    [source] = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        [info] = [name for name in archive.getnames() if re.fullmatch(r"[^/]+/PKG-INFO", name)]
        file = archive.extractfile(info)
        assert file is not None
        lines = file.read().decode().splitlines()
    assert "Project-URL: Source, https://forge.test/ann/mailprobe" in lines


def test_a_source_distribution_builds_the_same_wheel(
    checkout: Path, wheel: Path, tmp_path: Path
) -> None:
    """It holds files where the checkout has symbolic links."""
    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, tmp_path, at=checkout, env={"SOURCE_COMMIT": COMMIT})
    [source] = tmp_path.glob("*.tar.gz")
    assert members(build_wheel(source, tmp_path, stated=False)) == members(wheel)


def test_a_checkout_without_symbolic_links_says_what_to_do(tmp_path: Path) -> None:
    """As git on Windows makes it by default: each link is a file with the link's target."""
    (tmp_path / "mailprobe").mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    for name in PACKAGES:
        (tmp_path / "mailprobe" / name).write_text(f"../{name}")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    done = subprocess.run(
        [*pip, "."], cwd=tmp_path, capture_output=True, text=True, timeout=COMMAND_S
    )
    assert done.returncode != 0
    assert "git config core.symlinks true" in done.stdout + done.stderr


def test_the_build_extra_has_the_build_systems_requirements() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    assert extras["build"] == project["build-system"]["requires"]
