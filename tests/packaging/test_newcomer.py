"""The newcomer's path: install, serve, an account, a test key, each example, every page and link."""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urldefrag, urljoin, urlsplit

import pytest

from tests.packaging.conftest import Installed, environment, run
from tests.packaging.test_installed import POLL_S, started

PAGES = ("quickstart-form", "quickstart-nightly", "quickstart-assistant", "sandbox")
PROGRAMS = {"sh": ("bash", "-euo", "pipefail"), "python": (), "js": ("node",), "go": ("go", "run")}
FILES = {"sh": "block.sh", "python": "block.py", "js": "block.cjs", "go": "block.go"}
EXAMPLE_S = 180  # Go compiles its standard library at the first run
# The user's own, also in another home: that takes 30 s of processor time.
GO_CACHE = os.environ.get("GOCACHE", str(Path.home() / ".cache/go-build"))
ADDRESSES = "deliverable@sandbox.test\nfull@sandbox.test\n"


@dataclass(frozen=True)
class Door:
    """A service that a newcomer has just started, and the key that was made for tests."""

    installed: Installed
    said: str
    url: str
    env: dict[str, str]

    def get(self, path: str) -> tuple[int, str, str]:
        """The status, the media type and the text of a page."""
        try:
            with urllib.request.urlopen(urljoin(self.url, path)) as response:
                return (
                    response.status,
                    response.headers.get_content_type(),
                    response.read().decode("utf-8", "replace"),
                )
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers.get_content_type(), error.read().decode()


@pytest.fixture(scope="module")
def door(installed: Installed) -> Iterator[Door]:
    binds = {"MAILPROBE_BIND": "127.0.0.1:0", "MAILPROBE_TOOLS_BIND": "127.0.0.1:0"}
    log = installed.work / "service.log"
    with log.open("w") as writing, started(installed, "serve", log=writing, **binds) as process:
        while not (found := re.search(r"serving on (http://\S+?),? ", said := log.read_text())):
            assert process.poll() is None, said
            time.sleep(POLL_S)
        tools = re.search(r"tools on (\S+)/mcp", said)
        assert tools is not None
        account = json.loads(
            installed.run("account", "create", "--email", "new@example.org", "--tier", "builder")
        )
        made = json.loads(installed.run("key", "create", account["account_id"], "--test"))
        variables = {"BASE_URL": found[1], "TOOLS_URL": tools[1], "KEY": made["key"]}
        variables |= {"ACCOUNT_ID": account["account_id"]}
        yield Door(installed, said, found[1], variables)


def test_the_first_start_names_the_next_steps(door: Door) -> None:
    link, first, second = re.findall(r"^  (\S.*)$", door.said, re.MULTILINE)
    assert link.startswith(f"{door.url}/dashboard/welcome?token=")
    assert first.startswith("mailprobe account create --email")
    assert second.startswith(f"curl {door.url}/v1/email/verify")
    assert f"documentation on {door.url}/docs" in door.said


def test_the_dashboard_is_installed_with_its_files(door: Door) -> None:
    status, media_type, page = door.get("/dashboard/sign-in")
    assert (status, media_type) == (200, "text/html")
    files = re.findall(r"/dashboard/static/[^\"]+", page)
    assert len(files) > 4
    [style] = [file for file in files if file.endswith(".css")]
    fonts = re.findall(r"/dashboard/static/[^\"]+", door.get(style)[2])
    assert len(fonts) == 3
    assert {door.get(file)[0] for file in (*files, *fonts)} == {200}


def blocks_of(text: str) -> Iterator[tuple[str, str]]:
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language in PROGRAMS:
            yield language, block


@pytest.mark.parametrize("page", PAGES)
def test_each_example_of_a_page_runs_as_it_is_shown(door: Door, page: str) -> None:
    status, media_type, text = door.get(f"/docs/{page}.md")
    assert (status, media_type) == (200, "text/markdown")
    examples = list(blocks_of(text))
    assert examples
    printed: dict[str, str] = {}
    for language, block in examples:
        words = PROGRAMS[language] or (str(door.installed.python),)
        if not shutil.which(words[0]):
            continue
        file = door.installed.work / FILES[language]
        file.write_text(block, "utf-8")
        done = subprocess.run(
            [*words, file.name],
            cwd=door.installed.work,
            env=environment(door.installed.work)
            | {"PATH": f"{door.installed.mailprobe.parent}:{environment(Path('/'))['PATH']}"}
            | {"GOCACHE": GO_CACHE}
            | door.env,
            input=ADDRESSES,
            capture_output=True,
            text=True,
            timeout=EXAMPLE_S,
            check=False,
        )
        assert done.returncode == 0, f"{page}, {language}: {done.stdout}\n{done.stderr}"
        printed[language] = done.stdout
    if page == "quickstart-form":
        assert len({printed[name] for name in ("python", "js", "go") if name in printed}) == 1


def test_every_link_of_the_documentation_opens_and_nothing_is_loaded_from_outside(
    door: Door,
) -> None:
    to_visit, anchors = ["/docs", "/llms.txt"], {}
    wanted: set[tuple[str, str, str]] = set()  # page, target, fragment
    while to_visit:
        path = to_visit.pop()
        if path in anchors:
            continue
        status, media_type, text = door.get(path)
        assert status == 200, path
        anchors[path] = set(re.findall(r'id="([^"]+)"', text))
        if media_type != "text/html":
            continue
        loaded = re.findall(r'<(?:link|script|img|iframe|source)[^>]*(?:href|src)="([^"]+)"', text)
        assert all(not urlsplit(each).netloc for each in loaded), path
        for link in re.findall(r'href="([^"]+)"', text):
            target, fragment = urldefrag(urljoin(door.url + path, link))
            inner = target.removeprefix(door.url)
            if inner != target and not inner.startswith("/dashboard"):
                wanted.add((path, inner, fragment))
                to_visit.append(inner)
    assert len(anchors) > 40
    for path, target, fragment in wanted:
        assert not fragment or fragment in anchors[target], f"{path}: {target}#{fragment}"


def test_the_link_of_an_error_opens_its_section(door: Door) -> None:
    status, _, text = door.get("/v1/jobs/1")
    docs = json.loads(text)["docs"]
    assert status == 401
    url, fragment = urldefrag(docs)
    assert f'id="{fragment}"' in door.get(url)[2]


def test_the_manual_page_is_installed(door: Door) -> None:
    page = door.installed.python.parents[1] / "share/man/man1/mailprobe.1"
    assert page.read_text("utf-8").startswith(".TH MAILPROBE 1")
    if shutil.which("man"):
        assert "mailprobe clean" in run("man", "-l", page, at=door.installed.work)
