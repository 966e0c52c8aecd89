"""Every module of the product with what it is for, and figures of its shape; `make map` prints them.

Needs nothing but the standard library, so that it runs before anything is installed.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script

from tests.import_graph import circles_of_files, nodes_of, parsed
from tests.state_owners import foreign_writes, texts
from tests.test_private_names import places

ROOT = Path(__file__).parents[1]
SERVED = ("engine", "api", "storage")  # what a service consists of
PACKAGES = (*SERVED, "bench")
COLUMN = 30  # where the descriptions begin


def product_modules() -> list[Path]:
    """Every Python file of the product, relative to the checkout."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    own = sorted((ROOT / "mailprobe").glob("*.py"))
    return [path.relative_to(ROOT) for path in (*own, *sorted(found))]


QUESTION_WORDS = ("What ", "Which ", "How ", "Whether ", "Who ")


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring; empty where there is none."""
    text = ast.get_docstring(_parsed(path)) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z`\"])", paragraph, maxsplit=1)[0]


def lines() -> Iterator[str]:
    """A line for each folder, and below it a line for each module."""
    modules = product_modules()
    folders = {folder for path in modules for folder in path.parents} - {Path()}
    for path in sorted(folders | set(modules), key=_sort_key):
        if path.name == "__init__.py":
            continue
        is_folder = path in folders
        indent = "  " * (len(path.parts) - 1)
        said = first_sentence(path / "__init__.py" if is_folder else path)
        yield f"{indent}{path.name}{'/' * is_folder}".ljust(COLUMN - 1) + f" {said}"


def _sort_key(path: Path) -> tuple[int, tuple[tuple[bool, str], ...]]:
    """Packages in the order above; in a folder its modules first, then its folders."""
    order = ("mailprobe", *PACKAGES).index(path.parts[0])
    is_module = path.suffix == ".py"
    last = len(path.parts) - 1
    parts = tuple((not (is_module and at == last), name) for at, name in enumerate(path.parts))
    return order, parts


PROBING = Path("engine/smtp")
# What is read while its own object works on it, so that a call in between must be kept out.
GUARDS = {"applying", "freed", "_admitting", "_coming", "_is_trying"}


def probing_figures() -> dict[str, int]:
    """The shape of the probing core. Attributes are those that an object of the class assigns."""
    nodes = [
        node
        for path in product_modules()
        if path.is_relative_to(PROBING)
        for node in nodes_of(_parsed(path))
    ]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    circles = [each for each in circles_of_files() if "mailprobe.engine.smtp" in each[0]]
    return {
        "statements of the probing core": sum(map(_does_something, nodes)),
        "foreign writes in it": sum(
            each.startswith("engine.smtp.") for each in foreign_writes(texts())
        ),
        "files in its import circles": sum(map(len, circles)),
        "guards against calls during a step": len(
            GUARDS & {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        ),
        "lines of its largest class": max(_lines_of(each) for each in classes),
        "methods of its largest class": max(len(_methods(each)) for each in classes),
        "attributes of its largest class": max(len(_attributes(each)) for each in classes),
    }


def _does_something(node: ast.AST) -> bool:
    """Is it a statement, and no import nor docstring?"""
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)
    return isinstance(node, ast.stmt) and not isinstance(node, (ast.Import, ast.ImportFrom))


def _lines_of(node: ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _methods(node: ast.ClassDef) -> list[ast.stmt]:
    return [each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _attributes(node: ast.ClassDef) -> set[str]:
    """What its methods assign to `self`, or its body declares without a value of the class."""
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return declared | {
        each.attr
        for method in _methods(node)
        for each in nodes_of(method)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


def figures() -> dict[str, int]:
    """The size of the product, the shape of the probing core, the size of storage, the places of a
    store method there, heads that ask a question, and private names that tests use.
    """
    served = [path for path in product_modules() if path.parts[0] in SERVED]
    modules = {path: _parsed(path) for path in served if path.parts[0] == "storage"}
    nodes = [node for module in modules.values() for node in nodes_of(module)]
    commands = {
        node.name
        for node in nodes
        if isinstance(node, ast.ClassDef) and any("StoreCommand[" in _text(b) for b in node.bases)
    }
    return {
        "statements of api, engine and storage": sum(
            sum(map(_does_something, nodes_of(_parsed(path)))) for path in served
        ),
        **probing_figures(),
        "files of storage": len(modules),
        "statements of storage": sum(map(_does_something, nodes)),
        "store commands": len(commands),
        "places of a plain store method": max(
            _places(node, commands) for node in nodes if isinstance(node, ast.FunctionDef)
        ),
        "heads of modules that begin with a question word": sum(
            first_sentence(path).startswith(QUESTION_WORDS) for path in product_modules()
        ),
        "private names in tests": len(places()),
    }


def _places(function: ast.FunctionDef, commands: set[str]) -> int:
    """Where a store method stands that both databases run by this function of a `Database`.

    One place if it has the method's own arguments. With a command in their place there are also the
    command's class, its entry in a table, and the method that makes it.
    """
    arguments = [_text(each.annotation) for each in function.args.args if each.annotation]
    return 4 if arguments[:1] == ["Database"] and commands.intersection(arguments[1:2]) else 1


def _text(node: ast.expr) -> str:
    return ast.unparse(node)


def _parsed(path: Path) -> ast.Module:
    return parsed(ROOT / path)


if __name__ == "__main__":
    print(*(line.rstrip() for line in lines()), sep="\n")
    print(*(f"{name}: {number:,}" for name, number in figures().items()), sep="\n")
