"""No identifier, table or column uses a word of the first version that a standard term replaced.

dev/glossary.md has the terms. A word counts in the sense that was replaced, so
`ALLOWED` holds standard uses with their reasons.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.import_graph import nodes_of, parsed

ROOT = Path(__file__).parents[1]
FOLDERS = ("engine", "api", "storage", "bench", "tests")

OLD_WORDS = frozenset(
    [
        "house",
        "doors",
        "errand",
        "errands",
        "desk",
        "desks",
        "clerk",
        "clerks",
        "turnstile",
        "seats",
        "sitter",
        "sitters",
        "courier",
        "couriers",
        "postman",
        "postmen",
        "letters",
        "border",
        "borders",
        "farewell",
        "farewells",
        "anteroom",
        "anterooms",
        "prober",
        "probers",
        "census",
        "tally",
        "tallies",
        "glance",
        "glances",
        "onces",
        "lanes",
        "tidying",
        "town",
        "towns",
        "hammer",
        "hammers",
        "porter",
        "shedding",
        "deeds",
        "wishes",
        "inquiry",
        "inquiries",
        "twin",
        "twins",
        "wary",
        "renounce",
        "bells",
        "borne",
        "mouth",
        "moods",
        "personalities",
        "troubles",
        "told",
        "heard",
        "stirred",
        "agenda",
    ]
)

# Words of file and class names that have one subject in the glossary, and where that is: the session is
# SMTP's alone. PostgreSQL, the live socket, the protocol of tools and a signed-in browser have their own.
ONE_SUBJECT = {
    "session": ("engine/smtp/", "bench/world/", "bench/market/", "tests/engine/smtp/",
                "api/alerts/smtp_relay.py"),
}  # fmt: skip
# Other words for a term of the glossary, in the names of files.
OTHER_TERMS = {
    "facts": "shared cache",
    "knowledge": "shared cache",
}
SIGN_INS = frozenset(
    [
        "api/pages/dashboard/sessions.py",
        "storage/postgres/session.py",
        "storage/sessions.py",
        "storage/sqlite/session.py",
    ]
)  # to be renamed

VERBS = frozenset({"heard", "letters", "borne", "doors", "tidying", "house"})  # sentences of tests
VAGUE_TEST_NAME = re.compile(r"def test_((what|who|nobody)\w*|(\w+_)?(told|asked|bears)(_\w+)?)\(")

ALLOWED: dict[str, str] = {
    # name: reason
    "COLUMN_LETTERS": "letters of the alphabet",
    "DOUBLED_LETTERS_MIN": "letters of the alphabet",
    "FIRST_LETTER_LETTERS_MIN": "letters of the alphabet",
    "FUZZY_LETTERS_MIN": "letters of the alphabet",
    "FUZZY_WORD_LETTERS_MIN": "letters of the alphabet",
    "LETTERS": "letters of the alphabet",
    "NO_ENDING_LETTERS_MAX": "letters of the alphabet",
    "REMARK_LETTERS_MAX": "letters of the alphabet",
    "SQUEEZED_LETTERS_MIN": "letters of the alphabet",
    "SWAPPED_LETTERS_MIN": "letters of the alphabet",
    "TWO_SLIPS_LETTERS_MIN": "letters of the alphabet",
    "WESTERN_LETTERS": "letters of the alphabet",
    "_letters": "letters of the alphabet",
    "column_letters": "letters of the alphabet",
    "first_letters": "letters of the alphabet",
    "letters": "letters of the alphabet",
    "letters_min": "letters of the alphabet",
}

REPLACED_VERBS = frozenset(
    ["tell", "told", "ask", "asked", "say", "said", "hear", "give", "take", "stir", "bear", "ring"]
)  # as the first word of a function's name; "look_up" is the field's own term


def words_of(name: str) -> set[str]:
    """The words of an identifier, split at underscores and capitals, in lower case."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {part.lower() for part in parts}


class Names(NamedTuple):
    """Names that a module defines."""

    functions: frozenset[str]
    classes: frozenset[str]
    others: frozenset[str]  # of arguments, variables and attributes


@cache
def names_defined(path: Path) -> Names:
    functions, classes, others = set(), set(), set()
    for node in nodes_of(parsed(path)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                others.add(name)
            case ast.arg(arg=name):
                others.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                functions.add(name)
            case ast.ClassDef(name=name):
                classes.add(name)
    return Names(frozenset(functions), frozenset(classes), frozenset(others))


def names_of_schema(sql: str) -> Iterator[str]:
    """Identifiers of an SQL script; its comments and texts are no names."""
    yield from re.findall(r"[a-z_]+", re.sub(r"--.*|'[^']*'", "", sql.lower()))


def has_old_word(name: str) -> bool:
    """Whether it has one; a test's name is a sentence, in which a verb may stand."""
    return bool(words_of(name) & (OLD_WORDS - VERBS if name.startswith("test_") else OLD_WORDS))


def hits() -> dict[str, set[str]]:
    """The names with an old word, by file."""
    found: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            names = frozenset().union(*names_defined(path))
            found[path.relative_to(ROOT).as_posix()] = {n for n in names if has_old_word(n)}
    for path in sorted((ROOT / "storage/schema").rglob("*.sql")):
        names = frozenset(names_of_schema(path.read_text("utf-8")))
        found[path.relative_to(ROOT).as_posix()] = {n for n in names if has_old_word(n)}
    return {file: names - ALLOWED.keys() for file, names in found.items() if names - ALLOWED.keys()}


def test_no_identifier_uses_an_old_word():
    assert {file: sorted(names) for file, names in hits().items()} == {}


def product_names() -> Iterator[tuple[str, Names]]:
    for folder in FOLDERS[:-1]:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), names_defined(path)


def test_no_module_is_named_by_an_old_word():
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert [path.name for path in paths if words_of(path.stem) & OLD_WORDS] == []


def paths() -> Iterator[str]:
    """All modules, below their folders."""
    for folder in FOLDERS:
        yield from (path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py"))


def test_a_word_with_one_subject_names_no_other():
    elsewhere = {
        (file, name)
        for file in paths()
        for name in (*Path(file).with_suffix("").parts, *names_defined(ROOT / file).classes)
        for word, places in ONE_SUBJECT.items()
        if words_of(name) & {word, f"{word}s"} and not file.startswith(places)
    }
    assert {(file, name) for file, name in elsewhere if file not in SIGN_INS} == set()


def test_a_file_is_named_by_the_term_of_the_glossary():
    terms = {line.partition("|")[2].partition("|")[0].strip() for line in
             (ROOT / "dev/glossary.md").read_text("utf-8").splitlines()}  # fmt: skip
    assert {*ONE_SUBJECT, *OTHER_TERMS.values()} <= terms
    names = {name for file in paths() for name in Path(file).with_suffix("").parts}
    assert {name for name in names if words_of(name) & OTHER_TERMS.keys()} == set()


def test_no_function_begins_with_a_replaced_verb():
    assert [
        (file, name)
        for file, names in product_names()
        for name in names.functions
        if name.lstrip("_").partition("_")[0] in REPLACED_VERBS
    ] == []


def test_test_names_have_a_subject_and_standard_verbs():
    """A name that begins with what or who has the subject of its sentence last, or none."""
    assert [
        (path.relative_to(ROOT).as_posix(), found[0])
        for path in (ROOT / "tests").rglob("*.py")
        for found in VAGUE_TEST_NAME.finditer(path.read_text("utf-8"))
    ] == []


def test_a_class_name_means_one_thing():
    files: dict[str, list[str]] = {}
    for file, names in product_names():
        for name in names.classes:
            files.setdefault(name, []).append(file)
    assert {name: where for name, where in files.items() if len(where) > 1} == {}


def test_names_split_at_underscores_and_capitals():
    assert words_of("_OldDesk_v2") == {"old", "desk", "v"}
    assert words_of("SMTPDesk") == {"smtp", "desk"}
    assert "clerk" not in names_of_schema("CREATE TABLE desk (seat INTEGER) -- a clerk")
    assert "desk" in names_of_schema("CREATE TABLE desk (seat INTEGER)")
