"""What all files of deploy/ keep: each is there once, is described, and names real settings."""

import re
from pathlib import Path

import pytest

from mailprobe.api.settings import TABLE
from tests.deploy.files import DEPLOY, FILES, ROOT
from tests.docs.pages import BLOCKS

SETTINGS = {f"MAILPROBE_{row.name}" for row in TABLE} | {"MAILPROBE_CONFIG"}
PAGES = ("production", "deployment", "runbook")
PAGE = "".join((ROOT / f"docs/{name}.md").read_text("utf-8") for name in PAGES)
# file -> what only such a file contains
CONTENTS = {
    "Caddyfile": r"^\s*reverse_proxy ",
    "compose.yaml": r"^  mailprobe:",
    "fleet/compose.yaml": r"^  mailprobe-1:",
    "haproxy.cfg": r"^\s*option httpchk",
    "grafana-dashboard.json": r'"panels":',
    "mailprobe@.service": r"^\[Service\]",
    "nginx.conf": r"^\s*proxy_pass ",
    "prometheus-alerts.yaml": r"^\s*- alert:",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_setting_that_is_named_is_one(path: Path) -> None:
    text = path.read_text("utf-8")
    assert set(re.findall(r"\bMAILPROBE_[A-Z_]+\b", text)) <= SETTINGS


def test_there_is_one_file_of_each_kind() -> None:
    """A second copy, in the folder or on a page, would soon differ from the first."""
    ours = [path for path in FILES if path.is_relative_to(DEPLOY)]
    ours = [path for path in ours if not path.is_relative_to(DEPLOY / "helm")]  # see: tests/helm
    assert {str(path.relative_to(DEPLOY)) for path in ours} == set(CONTENTS)
    for name, content in CONTENTS.items():
        holding = [path for path in FILES if re.search(content, path.read_text("utf-8"), re.M)]
        assert holding == [DEPLOY / name]
        assert [str(block) for block in BLOCKS if re.search(content, block.text, re.M)] == []


@pytest.mark.parametrize("name", CONTENTS)
def test_the_page_for_operators_links_to_each_file(name: str) -> None:
    assert f"](../deploy/{name})" in PAGE


def test_mail_hosts_get_no_more_connections_than_from_one_service() -> None:
    """The store divides the connections to an exchange; no file here raises their number."""
    for path in FILES:
        assert "MAILPROBE_HOST_CONNECTIONS" not in path.read_text("utf-8")
