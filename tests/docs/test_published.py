"""No page names a package or an image of mailprobe: none is published before the first release.

dev/releasing.md says which lines that release changes; it removes this file too.
"""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

FETCHED = re.compile(
    r"\buvx\b|\bpipx run\b|\buv run --with\b|"
    r"\b(?:pipx?|uv pip|uv tool|pipx) (?:install|inject|upgrade)\b[^\n`]*[ '\"]mailprobe\b(?!/)|"
    r"\buv add mailprobe\b|\b(?:docker|podman) pull\b[^\n`]*mailprobe|"
    r"\b(?:ghcr\.io|docker\.io|quay\.io)/(?!OWNER/)[^\s`]*mailprobe"
)
PAGES = sorted(
    path
    for folder, pattern in (
        (ROOT, "*.md"), (ROOT / "docs", "*.md"), (ROOT / "dev", "*.md"), (ROOT / "dev", "mailprobe.1"),
        (ROOT / "examples", "*"), (ROOT / "deploy", "**/*"),
        (ROOT / "api/pages", "**/*.html"), *((ROOT / name, "**/*.py") for name in ("api", "bench", "engine", "storage")),
    )
    for path in folder.glob(pattern)
    if path.is_file()
)  # fmt: skip


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_uses_what_works_from_a_checkout(path: Path) -> None:
    assert FETCHED.findall(path.read_text("utf-8", "replace")) == []


@pytest.mark.parametrize(
    ("line", "is_fetched"),
    [
        ("uvx mailprobe demo", True),
        ('{"command": "uvx", "args": ["mailprobe"]}', True),
        ("pipx run mailprobe demo", True),
        ("pip install 'mailprobe[bench]'", True),
        ("uv tool install mailprobe", True),
        ("docker pull ghcr.io/someone/mailprobe", True),
        ("pipx install .", False),
        ("uv tool install .", False),
        ("docker build -t mailprobe .", False),
        ("/opt/mailprobe/bin/pip install --no-deps .", False),
        ("pip install standardwebhooks", False),
        ("gh attestation verify oci://ghcr.io/OWNER/REPOSITORY:0.1.0", False),
    ],
)
def test_a_line_that_fetches_a_package_is_recognized(line: str, is_fetched: bool) -> None:
    assert (FETCHED.search(line) is not None) == is_fetched
