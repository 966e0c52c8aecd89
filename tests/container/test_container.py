"""The container as docs/deployment.md runs it: podman, a published port, a volume, a read-only root."""

import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from mailprobe.bench.load.private_postgres import free_port
from tests.container.conftest import (
    COMMAND_S,
    PODMAN,
    Container,
    limits,
    podman,
    started,
)
from tests.packaging.conftest import COMMIT

VOLUME = "mailprobe-test-data"
LIST_OCTETS = 50 * 1024 * 1024
ROW_CHARACTERS = 4000
LIST_S = 300.0
STOP_S = 15.0


@pytest.fixture(scope="module")
def container(image: str) -> Iterator[Container]:
    port = free_port()
    published = f"127.0.0.1:{port}:8080"
    hardened = ("--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges")
    # podman's own /tmp of a read-only container is memory
    mounts = ("--volume", f"{VOLUME}:/data", "--volume", "/tmp")
    with started("mailprobe-test", port, "--publish", published, *hardened, *mounts) as running:
        running.wait_until_healthy()
        yield running
    podman("volume", "rm", "--force", VOLUME)


@pytest.fixture(scope="module")
def key(container: Container) -> str:
    words = ("account", "create", "--email", "ann@example.org", "--tier", "scale")
    made = json.loads(container.execute("mailprobe", *words).splitlines()[-1])
    return str(made["key"])


def request(container: Container, path: str, key: str, body: bytes, kind: str) -> Any:
    wanted = urllib.request.Request(
        f"{container.url}{path}",
        data=body,
        headers={"Authorization": f"Bearer {key}", "Content-Type": kind},
    )
    try:
        with urllib.request.urlopen(wanted, timeout=LIST_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read()) from error


def test_it_is_healthy_unprivileged_and_read_only(container: Container) -> None:
    assert container.execute("id", "-u").strip() == "10001"
    code = "import sys, pathlib; pathlib.Path(sys.argv[1], 'x').write_text('x')"
    for folder, may in {"/": False, "/opt/mailprobe": False, "/data": True, "/tmp": True}.items():
        done = subprocess.run(
            [*PODMAN, "exec", container.name, "python", "-c", code, folder], capture_output=True
        )
        assert (done.returncode == 0) is may, folder
    assert f"(commit {COMMIT})" in container.execute("mailprobe", "--version")


def test_it_has_the_tool_server(image: str) -> None:
    """On the standard streams of a container of its own, without a network."""
    ping = '{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    done = subprocess.run(
        [*PODMAN, "run", "--rm", "--interactive", "--network", "none", *limits(), image, "mcp"],
        input=ping, capture_output=True, text=True, timeout=COMMAND_S,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[0]) == {"jsonrpc": "2.0", "id": 1, "result": {}}


def test_its_log_has_a_link_that_makes_the_first_account(container: Container) -> None:
    [link] = re.findall(
        r"http://127\.0\.0\.1:8080(/dashboard/welcome\?token=\S+)", container.logs()
    )
    with urllib.request.urlopen(container.url + link, timeout=STOP_S) as page:
        assert page.status == 200
        assert b'name="email"' in page.read()


def test_an_address_is_verified(container: Container, key: str) -> None:
    body = json.dumps({"email": "ann@mailinator.com"}).encode()
    result = request(container, "/v1/email/verify", key, body, "application/json")
    assert (result["status"], result["email"]) == ("invalid", "ann@mailinator.com")


def test_a_list_of_50_mb_is_taken(container: Container, key: str) -> None:
    """Wide rows of few addresses: what is tried is the room for the file."""
    row = f"ann@mailinator.com,{'n' * ROW_CHARACTERS}\n"
    rows = LIST_OCTETS // len(row)
    text = "email,note\n" + row * rows
    made = request(container, "/v1/lists?name=wide.csv", key, text.encode(), "text/csv")
    assert made["rows"] == rows


def test_the_data_stay_and_a_stop_ends_with_0(container: Container, key: str) -> None:
    """The last test here: it stops the container."""
    began = time.monotonic()
    assert container.stop() == 0
    assert time.monotonic() - began < STOP_S
    port = free_port()
    published = ("--publish", f"127.0.0.1:{port}:8080", "--volume", f"{VOLUME}:/data")
    with started("mailprobe-test-again", port, *published) as again:  # as simply as can be
        again.wait_until_healthy()
        test_an_address_is_verified(again, key)
        assert again.stop() == 0
