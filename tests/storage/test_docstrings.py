"""At least 80 % of the storage package's public names have a docstring."""

import ast
from pathlib import Path

import mailprobe.storage

ROOT = Path(mailprobe.storage.__file__).parent
Public = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def documented(body: list[ast.stmt], *, inherited: frozenset[str] = frozenset()) -> list[bool]:
    found: list[bool] = []
    for node in body:
        if not isinstance(node, Public) or node.name.startswith("_"):
            continue
        found.append(bool(ast.get_docstring(node)) or node.name in inherited)
        if isinstance(node, ast.ClassDef):
            of_store = node.name.startswith("Memory")  # its layers are documented by Store
            found += documented(node.body, inherited=CONTRACT if of_store else frozenset())
    return found


contract = ast.parse((ROOT / "store.py").read_text())
store = next(node for node in contract.body if getattr(node, "name", "") == "Store")
CONTRACT = frozenset(
    n.name for n in getattr(store, "body", []) if isinstance(n, Public) and ast.get_docstring(n)
)


def test_most_public_names_of_the_storage_package_are_documented():
    modules = [ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))]
    found = [bool(ast.get_docstring(module)) for module in modules]
    found += [each for module in modules for each in documented(module.body)]
    assert sum(found) >= 0.8 * len(found), f"{sum(found)} of {len(found)}"
