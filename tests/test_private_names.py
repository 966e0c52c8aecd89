"""No test patches or imports a private name: each enters by a door, a contract or a pure function.

`python tests/test_private_names.py` prints every place. If a name is what a test needs, it is public
in its module; if a test checks only how something is done, a test of what is done takes its place.

Counted are, of a name with one underscore before it:

    read       an attribute of anything but self and cls
    inherited  an attribute of self that no test defines: a base class of the product does
    imported   a name or a module
    named      a text that names an attribute, given to setattr() and its like, in a table beside
               its owner, in a path of the package, looked for in vars(), or in a script
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.import_graph import nodes_of, parsed

ROOT = Path(__file__).parents[1]

PUBLIC = {"os._exit"}  # in the documentation of Python
BY_TEXT = frozenset(
    ["setattr", "getattr", "hasattr", "delattr", "object", "attrgetter", "failing", "Place"]
)
# Nodes that can have a use; the others are most of a tree.
USING = (
    *(ast.Attribute, ast.ImportFrom, ast.Import, ast.Constant),
    *(ast.Call, ast.Tuple, ast.Compare, ast.Subscript),
)
IN_A_SCRIPT = re.compile(r"\b(?!self\b|cls\b)\w+(?:\.\w+)*\._[a-z]\w*")


class PrivatePlace(NamedTuple):
    """A use of a private name."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def is_private(name: str) -> bool:
    return re.fullmatch(r"_(?!_)\w+", name) is not None


def _names(path: str) -> bool:
    """Does a dotted path have a private name in it?"""
    return any(map(is_private, path.split(".")))


def _defined(tree: ast.AST) -> set[str]:
    """The names that a file gives to functions, classes, variables and attributes."""
    found = set()
    for node in nodes_of(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def _texts_of(node: ast.AST) -> Iterator[str]:
    """The texts in a node that are given to what reads attributes by name."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=given):
            if name in BY_TEXT:
                yield from _constants(given)
        case ast.Tuple(elts=[ast.Name() | ast.Attribute(), *others]):
            yield from _constants(others)
        case ast.Compare(left=left, comparators=[ast.Call(func=ast.Name(id="vars"))]):
            yield from _constants([left])
        case ast.Subscript(value=ast.Call(func=ast.Name(id="vars")), slice=key):
            yield from _constants([key])


def _constants(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _uses(node: ast.AST, defined: set[str]) -> Iterator[str]:
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
            if is_private(name) and name not in defined:
                yield f"inherited {name}"
        case ast.Attribute(attr=name):
            if is_private(name) and ast.unparse(node) not in PUBLIC:
                yield f"read {ast.unparse(node)}"
        case ast.ImportFrom(module=module, names=names):
            yield from (f"imported {each.name}" for each in names if is_private(each.name))
            if module and _names(module):
                yield f"imported {module}"
        case ast.Import(names=names):
            yield from (f"imported {each.name}" for each in names if _names(each.name))
        case ast.Constant(value=str(text)):
            if text.startswith("mailprobe.") and re.fullmatch(r"[\w.]+", text) and _names(text):
                yield f"named {text}"
            elif "\n" in text and "import " in text:
                found = IN_A_SCRIPT.findall(text)
                yield from (f"named {each}" for each in found if each not in PUBLIC)
    yield from (f"named {text}" for text in _texts_of(node) if is_private(text))


def read(trees: dict[str, ast.Module]) -> list[PrivatePlace]:
    """The places of these files; a line counts once for each name."""
    defined = set().union(*map(_defined, trees.values()))
    found = {
        PrivatePlace(path, getattr(node, "lineno", 1), use)
        for path, tree in trees.items()
        for node in nodes_of(tree)
        if isinstance(node, USING)
        for use in _uses(node, defined)
    }
    return sorted(found)


def places() -> list[PrivatePlace]:
    """Every place of the tests, but for the examples of this file."""
    files = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != Path(__file__)]
    return read({path.relative_to(ROOT).as_posix(): parsed(path) for path in files})


# How many places a file or folder has, and why. Lower a number when places go; never raise one.
ALLOWED = {
    "tests/api/cli/": (9, "helpers of one command, replaced or called by its tests"),
    "tests/api/quota/killable_service.py": (4, "a kill before each write, which no contract has"),
    "tests/peers/postgres/test_migrate.py": (1, "a kill between a batch's write and its commit"),
    "tests/simulation/differential/worlds.py": (2, "trio has no public way to run tasks in order"),
    "tests/storage/migrate/": (1, "the connection of a copy that a test interrupts"),
    "tests/warm_process.py": (3, "a fork that begins and ends as an interpreter does"),
}


def allowed_by(place: PrivatePlace) -> str:
    """The file or folder of ALLOWED that has the place, or its own file."""
    return next((each for each in ALLOWED if place.path.startswith(each)), place.path)


def test_no_more_private_names_are_used_in_tests():
    found = places()
    counts = Counter(map(allowed_by, found))
    grown = {each for each, count in counts.items() if count > ALLOWED.get(each, (0, ""))[0]}
    assert not grown, "\n".join(str(each) for each in found if allowed_by(each) in grown)


TEXT = '''
import anyio._backends
from mailprobe.api.cli.verify import _texts, verify
from mailprobe.engine._dns import Resolver

SCRIPT = """
import os
target.Target._keep(1)
os._exit(0)
"""
PLACES = [(Server, "_enter"), ("_meta", 1), (Server, "run")]

class Door(Server):
    def __init__(self):
        self._own = 1
    def open(self):
        return self._own, self._theirs, self.__dict__

def test(monkeypatch):
    server._close()
    server.connection._buffer.find(__name__)
    monkeypatch.setattr("mailprobe.api.serve._log", None)
    monkeypatch.setattr(server, "_log", None)
    assert "_compiled" in vars(server)
    monkeypatch.setitem(headers, "_id", {"_id": "_total"})
    os._exit(0)
'''


def test_each_kind_of_place_is_found_and_no_other():
    found = read({"tests/test_it.py": ast.parse(TEXT)})
    assert sorted(each.what for each in found) == [
        "imported _texts",
        "imported anyio._backends",
        "imported mailprobe.engine._dns",
        "inherited _theirs",
        "named _compiled",
        "named _enter",
        "named _log",
        "named mailprobe.api.serve._log",
        "named target.Target._keep",
        "read server._close",
        "read server.connection._buffer",
    ]
    assert {each.line for each in found if each.what == "read server._close"} == {20}


def test_a_name_that_another_test_defines_is_not_inherited_from_the_product():
    base = "class Base:\n    def _reserve(self): ...\n"
    heir = "class Heir(Base):\n    def run(self): self._reserve()\n"
    assert read({"base.py": ast.parse(base), "heir.py": ast.parse(heir)}) == []


if __name__ == "__main__":
    print(*places(), sep="\n")
