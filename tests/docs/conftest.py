"""What the commands of the pages need: a lab, a service in the lab, and a working directory."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mailprobe.bench.lab import Lab
from mailprobe.bench.load.service_process import ServiceProcess, start_service
from tests.docs.pages import ROOT, Block
from tests.docs.programs import run
from tests.warm_lab import start_lab

# pages whose commands have a service, and of them those that use a test key
SERVED = {
    "api.md",
    "production.md",
    "operating.md",
    "backup.md",
    "forms.md",
    "sandbox.md",
    "tools.md",
}
TESTING = {
    "start.md", "quickstart-form.md", "quickstart-nightly.md", "quickstart-assistant.md",
    "recipes.md",
}  # fmt: skip
ORIGIN = "https://shop.example.org"  # of pages with a form
PATIENCE_S = 120  # for a command that no page shows
ROWS = 4  # of the example list: the next one stalls
# No command that is shown may wait a quarter of an hour because the pages before it asked the same host.
NO_WAIT = {"MAILPROBE_PATIENCE": "0"}
PREREQUISITES = ("curl", "sqlite3")  # programs that a page uses and mailprobe does not install


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab() as running:
        yield running


@pytest.fixture(scope="module")
def service(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with start_service({**lab.env, **NO_WAIT}, tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkout as the pages see it: the program, the examples and a list of one's own."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").mkdir()
    for name in ("stream.py", "egress.toml"):
        shutil.copy(ROOT / "examples" / name, tmp_path / "examples")
    lines = (ROOT / "examples/list.csv").read_text("utf-8").splitlines(keepends=True)
    for path in ("examples/list.csv", "list.csv"):
        (tmp_path / path).write_text("".join(lines[: ROWS + 1]), "utf-8")
    return tmp_path


@pytest.fixture
def env(request: pytest.FixtureRequest, block: Block, place: Path, lab: Lab) -> dict[str, str]:
    """What a block's commands find: the lab, and with it the service and its database."""
    for program in PREREQUISITES:
        if re.search(rf"\b{program} ", block.text) and not shutil.which(program):
            pytest.skip(f"this machine has no {program}")
    page = block.page.name
    if page not in SERVED | TESTING and "$BASE_URL" not in block.text:
        return {**lab.env, **NO_WAIT}
    service: ServiceProcess = request.getfixturevalue("service")
    (place / "data").symlink_to(service.folder / "data")
    variables = {
        "BASE_URL": service.url,
        "TOOLS_URL": service.tools_url,
        "KEY": new_key(service, test=True)["key"] if page in TESTING else service.key,
        "PROVISIONING_KEY": service.account["provisioning_key"],
        "ACCOUNT_ID": service.account["account_id"],
    }
    if "$FORM_KEY" in block.text:
        variables |= {"ORIGIN": ORIGIN, "FORM_KEY": form_key(service, place, lab.env | variables)}
    if "$KEY_ID" in block.text:
        variables["KEY_ID"] = new_key(service)["id"]
    return lab.env | NO_WAIT | variables


def form_key(service: ServiceProcess, place: Path, env: dict[str, str]) -> str:
    """A publishable key for ORIGIN."""
    account_id = service.account["account_id"]
    words = ["mailprobe", "key", "create", account_id, "--origin", ORIGIN]
    code, output = run(words, place, env, seconds=PATIENCE_S)
    assert code == 0, output
    return str(json.loads(output)["key"])


def new_key(service: ServiceProcess, *, test: bool = False) -> dict[str, str]:
    """A key that is the block's own: to be revoked, or with a minute of its own."""
    made = httpx.post(
        f"{service.url}/v1/management/keys",
        json={"test": test},
        headers={"Authorization": f"Bearer {service.account['provisioning_key']}"},
        trust_env=False,
    )
    made.raise_for_status()
    key: dict[str, str] = made.json()
    return key
