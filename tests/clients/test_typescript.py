"""A TypeScript client over the types of openapi-typescript compiles strictly, and works."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import DescribedService

FOLDER = Path(__file__).parent
COMMAND_S = 120
TSCONFIG = """{
  "compilerOptions": {
    "strict": true, "exactOptionalPropertyTypes": true, "noUncheckedIndexedAccess": true,
    "target": "ES2022", "module": "commonjs", "moduleResolution": "node10",
    "lib": ["ES2022", "DOM", "DOM.Iterable"], "types": [], "outDir": "out", "ignoreDeprecations": "%s"
  },
  "files": ["uses.ts"]
}
"""


def run(words: list[str], folder: Path, **variables: str) -> str:
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True,
        timeout=COMMAND_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def program(service: DescribedService, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the compiled program."""
    folder: Path = tmp_path_factory.mktemp("typescript")
    (folder / "node_modules").symlink_to(FOLDER / "node_modules")
    shutil.copy(FOLDER / "uses.ts", folder)
    version = run(["node_modules/.bin/tsc", "--version"], folder).split()[1]
    (folder / "tsconfig.json").write_text(TSCONFIG % ("6.0" if version >= "6" else "5.0"))
    run(
        ["node_modules/.bin/openapi-typescript", str(service.description), "-o", "api.d.ts"], folder
    )
    run(["node_modules/.bin/tsc", "--project", "."], folder)
    return folder


def test_the_program_does_what_its_types_promise(program: Path, service: DescribedService) -> None:
    output = run(["node", "out/uses.js"], program, BASE_URL=service.url, KEY=service.test_key)
    assert output.splitlines() == [
        "full@sandbox.test unknown keep and watch",
        "deliverable@sandbox.test keep",
        "undeliverable@sandbox.test remove",
        "429 monthly_quota_exceeded",
        "done true",
        "gmail.com",
        "list.csv 1 full@sandbox.test",
    ]


def test_every_line_of_a_stream_has_a_type(program: Path) -> None:
    types = (program / "api.d.ts").read_text("utf-8")
    assert "VerifyEmailResult: {" in types
    assert '"application/x-ndjson": string' in types
