"""`make compatible` finds each change of the API's description that breaks a client of the last release."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.architecture_map import ROOT

OASDIFF = Path(sys.executable).with_name("oasdiff")
RELEASED = ROOT / "dev/openapi.json"
COMMAND_S = 60
Change = Callable[[dict[str, Any], dict[str, Any]], Any]  # of paths and of schemas

pytestmark = pytest.mark.skipif(not OASDIFF.exists(), reason="`make check` has built no oasdiff")


def parameter(paths: dict[str, Any], name: str) -> dict[str, Any]:
    """The schema of a parameter of POST /v1/lists."""
    found: list[dict[str, Any]] = paths["/v1/lists"]["post"]["parameters"]
    schemas: dict[str, dict[str, Any]] = {each["name"]: each["schema"] for each in found}
    return schemas[name]


def require(schema: dict[str, Any]) -> None:
    schema["properties"]["new"] = {"type": "string"}
    schema["required"].append("new")


BREAKS: dict[str, Change] = {
    "api-path-removed": lambda paths, _: paths.pop("/v1/jobs/{id}"),
    "api-removed": lambda paths, _: paths["/v1/lists"].pop("get"),
    "response-required-property-removed": lambda _, schemas: schemas["ListResponse"]["properties"].pop("rows"),
    "response-property-became-optional":
        lambda _, schemas: schemas["VerifyEmailResult"]["required"].remove("status"),
    "response-property-type-changed":
        lambda _, schemas: schemas["ListResponse"]["properties"]["rows"].update(type="string"),
    "response-property-enum-value-added":
        lambda _, schemas: schemas["VerifyEmailResult"]["properties"]["status"]["enum"].append("maybe"),
    "response-success-status-removed": lambda paths, _: paths["/v1/jobs/{id}"]["get"]["responses"].pop("200"),
    "new-required-request-property": lambda _, schemas: require(schemas["BatchRequest"]),
    "request-parameter-enum-value-removed": lambda paths, _: parameter(paths, "recheck").update(enum=["0"]),
    "request-parameter-max-length-decreased": lambda paths, _: parameter(paths, "name").update(maxLength=3),
    "request-body-media-type-removed":
        lambda paths, _: paths["/v1/lists"]["post"]["requestBody"]["content"].pop("text/csv"),
    "new-required-request-parameter": lambda paths, _: paths["/v1/lists"]["get"].update(
        parameters=[{"name": "q", "in": "query", "required": True, "schema": {"type": "string"}}]),
}  # fmt: skip
ADDITIONS: dict[str, Change] = {
    "a path": lambda paths, _: paths.update({"/v1/new": paths["/v1/lists"]}),
    "a field of a response": lambda _, schemas: schemas["ListResponse"]["properties"].update(
        new={"type": "string"}),
    "a field that a request may have": lambda _, schemas: schemas["BatchRequest"]["properties"].update(
        new={"type": "string"}),
}  # fmt: skip


def compared(change: Change, folder: Path) -> tuple[int, str]:
    """The exit code and the words of a comparison of the released description with a changed one."""
    document = json.loads(RELEASED.read_text("utf-8"))
    change(document["paths"], document["components"]["schemas"])
    changed = folder / "changed.json"
    changed.write_text(json.dumps(document))
    done = subprocess.run(
        [OASDIFF, "breaking", "--fail-on", "WARN", "--format", "singleline", RELEASED, changed],
        capture_output=True, text=True, timeout=COMMAND_S,
    )  # fmt: skip
    assert not done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize("kind", BREAKS)
def test_a_change_that_breaks_clients_is_found(kind: str, tmp_path: Path) -> None:
    code, words = compared(BREAKS[kind], tmp_path)
    assert code == 1
    assert f"[{kind}" in words


@pytest.mark.parametrize("kind", ADDITIONS)
def test_an_addition_breaks_no_client(kind: str, tmp_path: Path) -> None:
    code, words = compared(ADDITIONS[kind], tmp_path)
    assert (code, words.startswith("No breaking changes")) == (0, True)
