"""No page speaks the language of the API or of the command line.

Every text is looked at: of the templates, of the modules that fill them, of each refusal, and of
what refuses a list. Pages that teach the API are the exceptions.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailprobe.api import refusals
from mailprobe.api.cli import COMMANDS
from mailprobe.api.error_table import TABLE
from mailprobe.api.pages.dashboard.refusal_words import words_of
from mailprobe.api.refusals import InvalidRequest, Refusal
from tests.api.pages.test_served import example_of
from tests.api.service_fixture import PLACES

API = Path(__file__).parents[3] / "api"
DASHBOARD = API / "pages/dashboard"
TEACHES = {"start.html", "begun.html"}  # a line for a terminal, names of variables
TEMPLATES = sorted(
    path for path in (DASHBOARD / "templates/dashboard").glob("*.html") if path.name not in TEACHES
)
# beside the modules of the dashboard
SHOWN = ("lists/reader_trouble.py", "results/lights.py")
MADE_FOR_CLIENTS = {"start_page.py", "try_page.py"}  # lines of curl, a file of variables
# no page can have them: they are of a form's script, and of the live socket
OF_PROGRAMS = {
    refusals.OriginNotAllowed,
    refusals.FormBusy,
    refusals.FormOff,
    refusals.UpgradeRequired,
}

FORBIDDEN = {
    "a route": r"/v1/|/openapi|\b(?:GET|POST|PUT|DELETE) [/{]",
    "a header": r"Idempotency-Key|Authorization|Bearer|Retry-After|Content-(?:Type|Encoding)"
    r"|X-Request-Id|\bOrigin header",
    "a field or a code": r"(?<![A-Za-z_])(?!(?:sk|pk)_(?:live|test|mgmt))[a-z]+(?:_[a-z]+)+\b",
    "a status": r"\b[2-5]xx\b|\bof a [2-5]\d\d\b",
    "an option": r"(?<![\w-])--[a-z]",
    "a command": rf"\bmailprobe (?:{'|'.join(sorted(COMMANDS))})\b",
    "a word of the protocol": r"\boctets?\b|query parameter|API description",
}

_CODE = re.compile(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
_ATTRIBUTES = re.compile(r'\b(?:alt|aria-label|title|placeholder|data-confirm|data-wait)="([^"]*)"')
_STRINGS = re.compile(r"\"([^\"]*)\"|'([^']*)'")


def texts_of(template: str) -> Iterator[str]:
    """The text nodes, the attributes that are read, and the sentences inside of tags of Jinja."""
    for code in _CODE.findall(template):
        strings = ["".join(found) for found in _STRINGS.findall(code)]
        yield from (string for string in strings if " " in string)
    plain = _CODE.sub("", re.sub(r"<script\b.*?</script>", "", template, flags=re.DOTALL))
    yield from _ATTRIBUTES.findall(plain)
    yield from re.split(r"<[^>]*>", plain)


def sentences_of(module: Path) -> Iterator[str]:
    """The strings of a module that have several words, without docstrings and log lines."""
    tree = ast.parse(module.read_text("utf-8"))
    unread = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log."):
            unread |= {id(part) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in unread
        ) and re.search(r"[A-Za-z] [A-Za-z]", node.value):
            yield re.sub(r"\{\w+\}", "…", node.value)  # a value


def refusals_of(module: Path) -> Iterator[str]:
    """What a module says of lists that cannot be read, without hints for the command line."""
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "BadList":
            for part in ast.walk(node.args[0]):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def foreign(text: str) -> list[str]:
    """What the text has of another language, each with its kind."""
    return [
        f"{kind}: {found[0]!r} in {' '.join(text.split())!r}"
        for kind, pattern in FORBIDDEN.items()
        if (found := re.search(pattern, text))
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Use POST /v1/lists", "With the header Idempotency-Key", "wait until reset_at",
        "the job_id of a job", "Use the id of a 202", "answer 2xx", "name it with --column",
        "run mailprobe doctor", "more than 9 octets", "the query parameter name",
    ],
)  # fmt: skip
def test_a_foreign_text_is_found(text: str) -> None:
    assert foreign(text)


@pytest.mark.parametrize("text", ["Sign in with sk_mgmt_…", "well-known – e-mail", "pk_test_…"])
def test_a_text_of_the_pages_is_not(text: str) -> None:
    assert not foreign(text)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_template_speaks_of_the_api(template: Path) -> None:
    found = [each for text in texts_of(template.read_text("utf-8")) for each in foreign(text)]
    assert found == []


@pytest.mark.parametrize(
    "module",
    [
        *sorted(path for path in DASHBOARD.rglob("*.py") if path.name not in MADE_FOR_CLIENTS),
        *(API / name for name in SHOWN),
    ],
    ids=lambda path: path.name,
)
def test_no_sentence_of_a_page_speaks_of_the_api(module: Path) -> None:
    assert [each for text in sentences_of(module) for each in foreign(text)] == []


def test_no_list_is_refused_in_the_words_of_the_command_line() -> None:
    modules = [*(API / "listfile").rglob("*.py"), *(API / "reader").rglob("*.py")]
    texts = [text for module in modules for text in refusals_of(module)]
    assert len(texts) > 50
    assert [each for text in texts for each in foreign(text)] == []


@pytest.mark.parametrize(
    "kind", [kind for kind in TABLE if kind not in OF_PROGRAMS], ids=lambda kind: kind.__name__
)
def test_no_refusal_speaks_of_the_api_to_a_person(kind: type[Refusal]) -> None:
    refusal = InvalidRequest("It is wrong.") if kind is InvalidRequest else example_of(kind)
    what, action = words_of(refusal, PLACES)
    assert what.endswith((".", "words"))
    assert foreign(f"{what} {action}") == []
