"""The recipes of docs/recipes.md work: the service is real, the other tools are stand-ins.

A stand-in has the routes and names that its tool documents. That a recipe uses the service rightly
is shown, and that the tool still has these names is not. The recipe for cron is a block that
test_commands runs.
"""

import json
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from mailprobe.bench.load.service_process import ServiceProcess
from tests.docs.conftest import new_key
from tests.docs.pages import ROOT, blocks_of
from tests.docs.programs import run

PAGE = ROOT / "docs/recipes.md"
EMAILS = ["deliverable@sandbox.test", "undeliverable@sandbox.test", "typo@sandbox.test"]
STATUSES = ["deliverable", "undeliverable", "deliverable"]


def recipe(language: str, text: str) -> str:
    [found] = [
        block.text for block in blocks_of(PAGE) if block.language == language and text in block.text
    ]
    return found


@pytest.fixture
def key(service: ServiceProcess) -> str:
    return new_key(service, test=True)["key"]


class Contacts(BaseHTTPRequestHandler):
    """HubSpot's contacts: two pages, one contact without an address, and one 429 at first."""

    pages = ({"1": EMAILS[0], "2": None}, {"3": EMAILS[1], "4": EMAILS[2]})

    def do_GET(self) -> None:
        assert isinstance(self.server, HubSpot)
        place = 1 if "after=next" in self.path else 0
        results = [
            {"id": name, "properties": {"email": email}}
            for name, email in self.pages[place].items()
        ]
        paging = {"paging": {"next": {"after": "next"}}} if place == 0 else {}
        self.answer({"results": results, **paging})

    def do_POST(self) -> None:
        assert isinstance(self.server, HubSpot)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/crm/v3/objects/contacts/batch/update"
        self.server.statuses |= {
            each["id"]: each["properties"]["mailprobe_status"] for each in body["inputs"]
        }
        self.answer({"status": "COMPLETE"})

    def answer(self, body: dict[str, object]) -> None:
        assert isinstance(self.server, HubSpot)
        if self.headers["Authorization"] != "Bearer pat-1":
            self.send_error(401)
            return
        text = json.dumps(body).encode()
        self.send_response(200 if self.server.has_refused else 429)
        self.server.has_refused = True
        self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class HubSpot(ThreadingHTTPServer):
    """The stand-in, and what was written into it."""

    has_refused = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Contacts)
        self.statuses: dict[str, str] = {}


@pytest.fixture
def hubspot() -> Iterator[HubSpot]:
    with HubSpot() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_recipe_for_hubspot_writes_the_status_of_each_contact(
    service: ServiceProcess, key: str, hubspot: HubSpot, tmp_path: Path
) -> None:
    (tmp_path / "recipe.py").write_text(recipe("python", "HUBSPOT"), "utf-8")
    url = f"http://127.0.0.1:{hubspot.server_address[1]}"
    env = {"HUBSPOT_URL": url, "HUBSPOT_TOKEN": "pat-1", "BASE_URL": service.url, "KEY": key}
    code, output = run([sys.executable, "recipe.py"], tmp_path, env)
    assert code == 0, output
    assert hubspot.statuses == dict(zip(("1", "3", "4"), STATUSES, strict=True))


def test_the_recipe_for_mailchimp_splits_an_export(
    service: ServiceProcess, key: str, tmp_path: Path
) -> None:
    [words] = [recipe("text", "--split").split()]
    name = words[2].removesuffix(".csv")
    rows = "".join(f"{email},Ann,Lee,2,2026-01-01 10:00:00\n" for email in EMAILS)
    head = "Email Address,First Name,Last Name,MEMBER_RATING,OPTIN_TIME\n"
    (tmp_path / f"{name}.csv").write_text(head + rows, "utf-8")
    code, output = run(words, tmp_path, {"MAILPROBE_SERVER": service.url, "MAILPROBE_KEY": key})
    assert code == 0, output
    kept, confirmed, dropped = (
        (tmp_path / f"{name}.verified.{part}.csv").read_text("utf-8")
        for part in ("keep", "confirm", "drop")
    )
    assert [EMAILS[0] in kept, EMAILS[2] in confirmed, EMAILS[1] in dropped] == [True] * 3


def test_the_recipe_for_n8n_is_a_request_that_the_service_answers(
    service: ServiceProcess, key: str
) -> None:
    text = recipe("json", "n8n-nodes-base").replace("http://127.0.0.1:8080", service.url)
    [node] = json.loads(text.replace("sk_test_…", key))["nodes"]
    request = node["parameters"]
    headers = {each["name"]: each["value"] for each in request["headerParameters"]["parameters"]}
    body = re.fullmatch(
        r"=\{\{ JSON\.stringify\(\{(\w+): \$json\.email\}\) \}\}", request["jsonBody"]
    )
    assert body
    got = httpx.request(
        request["method"],
        request["url"],
        headers=headers,
        json={body[1]: EMAILS[0]},
        trust_env=False,
    )
    assert (got.status_code, got.json()["status"]) == (200, "deliverable")


# What Apps Script has; its fetch is synchronous, so a curl makes the request.
APPS_SCRIPT = """
const { execFileSync } = require("node:child_process");
const PropertiesService = { getScriptProperties: () => ({ getProperty: (name) => process.env[name] }) };
const UrlFetchApp = { fetch(url, options) {
  const headers = { ...options.headers, "Content-Type": options.contentType };
  const words = Object.entries(headers).flatMap(([name, value]) => ["-H", `${name}: ${value}`]);
  const out = execFileSync("curl", ["-s", "-w", "\\n%{http_code}", "-X", options.method.toUpperCase(), url, ...words,
    "--data-binary", options.payload], { encoding: "utf-8" });
  const end = out.lastIndexOf("\\n");
  return { getContentText: () => out.slice(0, end), getResponseCode: () => Number(out.slice(end + 1)) };
} };
"""


@pytest.mark.parametrize("wrong", [False, True], ids=["a key", "a wrong key"])
def test_the_recipe_for_google_sheets_fills_two_columns(
    service: ServiceProcess, key: str, tmp_path: Path, wrong: bool
) -> None:
    if not shutil.which("node") or not shutil.which("curl"):
        pytest.skip("this machine has no node or no curl")
    cells = json.dumps([[email] for email in EMAILS])
    call = f"console.log(JSON.stringify(MAILPROBE({cells})));\n"
    program = APPS_SCRIPT + recipe("js", "MAILPROBE") + call
    (tmp_path / "recipe.cjs").write_text(program, "utf-8")
    env = {"BASE_URL": service.url, "KEY": "sk_test_wrong" if wrong else key}
    code, output = run(["node", "recipe.cjs"], tmp_path, env)
    if wrong:
        assert (code, "Error: The Authorization header" in output) == (1, True), output
        return
    assert code == 0, output
    suggestions = ["", "", "gmail.com"]
    assert json.loads(output) == [list(row) for row in zip(STATUSES, suggestions, strict=True)]
