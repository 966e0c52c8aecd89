"""Circles of imports, of files and of folders; imports for types count like all others.

`python tests/import_graph.py` prints them. Needs nothing but the standard library.

A folder is good if what stands directly in it, files and folders alike, can be ordered so that
each imports only what stands before it; a folder imports what any file below it imports.
"""

import ast
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("engine", "storage", "api", "bench")

Circle = tuple[str, ...]  # in the order of the alphabet
Graph = Mapping[str, frozenset[str]]


# Rules look at all sources: each is parsed and walked once in a process.
@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """What `ast.walk` gives, in its order."""
    nodes = [tree]
    for node in nodes:
        nodes.extend(ast.iter_child_nodes(node))  # the loop goes on with them
    return tuple(nodes)


@cache
def modules() -> dict[str, Path]:
    return {
        _module_name(path): path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("mailprobe", *(parts[:-1] if parts[-1] == "__init__" else parts)))


@cache
def imported(module: str) -> frozenset[str]:
    """Every module that this one's text names in an import, wherever it stands."""
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in nodes_of(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).strip(".")
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in modules() else base for name in names}
    return frozenset(found)


def graph_of_files() -> Graph:
    return {
        module: frozenset(
            other for other in imported(module) if other in modules() and other != module
        )
        for module in modules()
    }


def graph_within(folder: str) -> Graph:
    """Which of the files and folders directly in this folder import which others of them."""
    found: dict[str, set[str]] = {}
    for module, others in graph_of_files().items():
        if module.startswith(f"{folder}."):
            entry = _entry_of(module, folder)
            of_here = {
                _entry_of(other, folder) for other in others if other.startswith(f"{folder}.")
            }
            found.setdefault(entry, set()).update(of_here - {entry})
    return {entry: frozenset(others) for entry, others in found.items()}


def _entry_of(module: str, folder: str) -> str:
    return f"{folder}.{module.removeprefix(f'{folder}.').partition('.')[0]}"


def circles(graph: Graph) -> set[Circle]:
    """The strongly connected components with more than one member (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: set[Circle] = set()

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in order:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == order[node]:
            members = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(members) > 1:
                found.add(tuple(sorted(members)))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


def circles_of_files() -> set[Circle]:
    return circles(graph_of_files())


def circles_of_folders() -> set[Circle]:
    """Those that have a folder among their members, at every level."""
    files = {name for name, path in modules().items() if path.name != "__init__.py"}
    folders = set(modules()) - files
    return {
        circle
        for folder in folders
        for circle in circles(graph_within(folder))
        if not files.issuperset(circle)
    }


def lines(named: Iterable[Circle]) -> Iterable[str]:
    for circle in sorted(named):
        short = [name.removeprefix("mailprobe.") for name in circle]
        yield f"  {len(circle)}: {', '.join(short)}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(["circles of files", *lines(circles_of_files())]) + "\n")
    sys.stdout.write("\n".join(["circles of folders", *lines(circles_of_folders())]) + "\n")
