"""Clients of openapi-generator in four languages upload lists as text and as workbooks.

A language is left out where this machine has not its programs. The generator comes by Maven. A client in C# is
generated and read, and not run: it needs packages of NuGet, and Debian has no .NET SDK.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import xlsxwriter
from msgspec import Struct

from tests.clients.conftest import DescribedService

UPLOADS = Path(__file__).parent / "uploads"
GENERATOR = "org.openapitools:openapi-generator-cli:7.25.0"
FETCH = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
COMMAND_S = 300  # Maven fetches some 30 packages at the first run
ROWS = {"full@sandbox.test": "unknown", "undeliverable@sandbox.test": "undeliverable"}


class Language(Struct, frozen=True):
    """How the client of a language is generated, built and run, in the folder of the client."""

    program: str  # of UPLOADS, and where it is put
    place: str
    build: tuple[str, ...]
    run: tuple[str, ...]
    options: tuple[str, ...] = ()


LANGUAGES = {
    "python": Language("upload_list.py", ".", (), (sys.executable, "upload_list.py")),
    "go": Language(
        "upload_list.go", "upload", ("go", "build", "-o", "uploads-it", "./upload"), ("./uploads-it",),
        ("--git-host=mailprobe.test", "--git-user-id=generated", "--git-repo-id=client"),
    ),
    "java": Language(
        "UploadList.java", "src/main/java",
        ("mvn", "-q", "-B", "compile", f"{FETCH}:copy-dependencies", "-DoutputDirectory=lib"),
        ("java", "-cp", "target/classes:lib/*", "UploadList"),
    ),
    "php": Language("upload_list.php", ".", (), ("php", "upload_list.php")),
}  # fmt: skip


def run(words: tuple[str | Path, ...], folder: Path, **variables: str) -> str:
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True,
        timeout=COMMAND_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for each in ("mvn", "java"):
        if not shutil.which(each):
            pytest.skip(
                f"openapi-generator comes by Maven and runs in Java: there is no {each} here"
            )
    folder: Path = tmp_path_factory.mktemp("generator")
    run(
        (
            "mvn",
            "-q",
            "-B",
            f"{FETCH}:copy",
            f"-Dartifact={GENERATOR}",
            f"-DoutputDirectory={folder}",
        ),
        folder,
    )
    [jar] = folder.glob("*.jar")
    return jar


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_generated_client_uploads_lists_and_reads_the_results(
    name: str, generator: Path, service: DescribedService, tmp_path: Path
) -> None:
    language = LANGUAGES[name]
    for words in filter(None, (language.build, language.run)):
        if not words[0].startswith("./") and not shutil.which(words[0]):
            pytest.skip(f"there is no {words[0]} here")
    what: tuple[str | Path, ...] = ("-i", service.description, "-g", name, "-o", tmp_path)
    run(("java", "-jar", generator, "generate", *what, *language.options), tmp_path)
    (tmp_path / language.place).mkdir(exist_ok=True)
    shutil.copy(UPLOADS / language.program, tmp_path / language.place)
    if language.build:
        run(language.build, tmp_path)
    (tmp_path / "list.csv").write_text("\n".join(["email", *ROWS, ""]))
    with xlsxwriter.Workbook(tmp_path / "list.xlsx") as workbook:
        workbook.add_worksheet().write_column(0, 0, ["email", *ROWS])
    printed = run(
        (*language.run, "list.csv", "list.xlsx"),
        tmp_path,
        BASE_URL=service.url,
        KEY=service.test_key,
    )
    lines = iter(printed.splitlines())
    for file in ("list.csv", "list.xlsx"):
        assert next(lines) == f"{file} {len(ROWS)}"
        results = [json.loads(next(lines)) for _ in ROWS]
        assert {result["email"]: result["status"] for result in results} == ROWS


C_SHARP = {  # library -> what the upload takes, and the line that sends it as it is
    "generichost": ("FileParameter body", "new StreamContent(fileParameterLocalVar.Content)"),
    "httpclient": ("FileParameter body", "new StreamContent(fp.Content)"),
    "restsharp": ("System.IO.Stream body", "ClientUtils.ReadAsBytes(stream)"),
}


@pytest.mark.parametrize("library", C_SHARP)
def test_a_client_in_c_sharp_is_made_to_upload_a_stream(
    library: str, generator: Path, service: DescribedService, tmp_path: Path
) -> None:
    what: tuple[str | Path, ...] = ("-i", service.description, "-g", "csharp", "-o", tmp_path)
    run(("java", "-jar", generator, "generate", *what, f"--library={library}"), tmp_path)
    source = tmp_path / "src" / "Org.OpenAPITools"
    operations = (source / "Api" / "ListsApi.cs").read_text("utf-8")
    takes, sends = C_SHARP[library]
    [signature] = re.findall(
        r"^ +public (?:ListResponse CreateList|async Task<ICreateListApiResponse> CreateListAsync)"
        r"\((.*)",
        operations,
        re.MULTILINE,
    )
    assert takes in signature
    texts = [each.read_text("utf-8") for each in source.glob("[AC]*/*Api*.cs")]  # Api, Client
    assert any(sends in text for text in texts)
    assert operations.index('"application/octet-stream"') < operations.index('"text/csv"')
