"""What is declared as needed is imported, what is imported is declared, and the locks hold it."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.architecture_map import ROOT, product_modules
from tests.import_graph import parsed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
# `bench peers` installs other verifiers into environments of their own; these scripts run there.
PEERS = {"validate_email", "verify_email"}


def normal(name: str) -> str:
    """A distribution's name as PEP 503 compares them, without extras and versions."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", name)[0]).lower()


DECLARED = {normal(name) for name in PROJECT["dependencies"]}
OPTIONAL = {normal(name) for name in EXTRAS["bench"] + EXTRAS["mcp"] + EXTRAS["otel"]}


@cache
def imported_names(path: Path) -> frozenset[str]:
    return frozenset(_imported_names(parsed(ROOT / path)))


def _imported_names(tree: ast.AST) -> Iterator[str]:
    """The top-level packages that a module imports, in functions too, but not for types alone."""
    if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test):
        return
    if isinstance(tree, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom) and tree.module and not tree.level:
        yield tree.module.partition(".")[0]
    for child in ast.iter_child_nodes(tree):
        yield from _imported_names(child)


@cache
def imported() -> frozenset[str]:
    """The distributions that the product imports from; of several that share a package, the declared."""
    names = {name for path in product_modules() for name in imported_names(path)}
    homes = packages_distributions()
    foreign = names - sys.stdlib_module_names - PEERS - {"mailprobe"}
    found = [{normal(home) for home in homes[name]} for name in foreign]
    return frozenset().union(*(each & (DECLARED | OPTIONAL) or each for each in found))


def locked(lock: str) -> dict[str, set[str]]:
    """The versions of each distribution in a lock: several where interpreters need different ones."""
    versions: dict[str, set[str]] = {}
    for name, version in re.findall(r"^(\S+)==(\S+)", (ROOT / lock).read_text("utf-8"), re.M):
        versions.setdefault(normal(name), set()).add(version)
    return versions


def test_every_runtime_dependency_is_imported() -> None:
    assert imported() >= DECLARED


def test_every_import_is_a_runtime_dependency_or_of_an_extra_for_users() -> None:
    assert imported() - DECLARED <= OPTIONAL


def test_only_a_session_of_the_tool_server_imports_its_packages() -> None:
    """They take half a second, and are not there without their extra."""
    names = {normal(name) for name in EXTRAS["mcp"]}
    importing = {str(path) for path in product_modules() if names & imported_names(path)}
    assert importing == {"api/cli/toolserver/protocol.py"}


def test_the_lock_of_what_runs_holds_it_and_no_tool() -> None:
    runtime = locked("requirements.lock")
    assert DECLARED | {normal(name) for name in EXTRAS["build"]} <= set(runtime)
    tools = {normal(name) for name in EXTRAS["dev"]} | OPTIONAL
    assert tools & set(runtime) == set()


def test_the_lock_of_the_image_adds_the_tool_server_at_the_same_versions() -> None:
    runtime, image = locked("requirements.lock"), locked("requirements-mcp.lock")
    assert runtime.items() <= image.items()
    assert {normal(name) for name in EXTRAS["mcp"]} <= set(image)
    tools = {normal(name) for extra in ("dev", "bench", "otel") for name in EXTRAS[extra]}
    assert tools & set(image) == set()


def test_the_lock_of_the_tools_has_everything_at_the_same_versions() -> None:
    everything = locked("requirements-dev.lock")
    assert {normal(name) for extra in EXTRAS.values() for name in extra} <= set(everything)
    assert locked("requirements-mcp.lock").items() <= everything.items()


def test_the_locks_have_hashes_and_no_address() -> None:
    for lock in ("requirements.lock", "requirements-mcp.lock", "requirements-dev.lock"):
        text = (ROOT / lock).read_text("utf-8")
        entries = re.split(r"^(?=\S+==)", text, flags=re.M)[1:]
        assert all("--hash=sha256:" in entry for entry in entries)
        assert not re.search(r"://|--(extra-)?index-url|--find-links", text)
