"""Who may import whom: pure modules know no clock, no chance, no network, no disk."""

import ast
from collections import Counter
from functools import cache

import pytest

from tests.import_graph import (
    circles_of_files,
    circles_of_folders,
    imported,
    lines,
    modules,
    nodes_of,
    parsed,
)

PURE = [
    "mailprobe.engine.address",
    "mailprobe.engine.dns.messages",
    "mailprobe.engine.dns.fast_decoder",
    "mailprobe.engine.evidence",
    "mailprobe.engine.dns.http1",
    "mailprobe.engine.dns.response",
    "mailprobe.engine.dns.http2",
    "mailprobe.engine.dns.query_queue",
    "mailprobe.engine.dns.pacing",
    "mailprobe.engine.egress",
    "mailprobe.engine.own_lists",
    "mailprobe.engine.settings",
    "mailprobe.engine.smtp.limits",
    "mailprobe.engine.smtp.operators",
    "mailprobe.engine.fair_queue",
    "mailprobe.engine.lists.typos",
    "mailprobe.engine.verdict",
    "mailprobe.engine.smtp.replies.nested",
    "mailprobe.engine.smtp.replies.prefilter",
    "mailprobe.engine.smtp.pairing",
    "mailprobe.engine.smtp.patience",
    "mailprobe.engine.smtp.probe",
    "mailprobe.engine.smtp.leases.ledger",
    "mailprobe.engine.smtp.leases.name_claims",
    *(
        f"mailprobe.engine.smtp.tolerance.{name}"
        for name in (
            *("accounts", "bans", "budget", "host", "hosts", "limits", "rate", "refusals"),
            "share",
        )
    ),
    "mailprobe.engine.smtp.replies.rules",
    "mailprobe.engine.smtp.backoff",
    *(f"mailprobe.engine.smtp.host.{name}" for name in ("connections", "openings")),
    "mailprobe.engine.smtp.wire",
    "mailprobe.engine.smtp.replies.text",
]
IMPURE = {
    *("trio", "anyio", "asyncio", "threading", "subprocess", "quart", "httpx", "hypercorn"),
    *("sqlite3", "socket", "ssl", "select", "time", "random", "secrets", "os"),
}
# layer -> what it may not import of ours
FORBIDDEN = {
    "engine": {"api", "storage", "bench", "tests"},
    "storage": {"engine", "api", "bench", "tests"},
    "api": {"bench", "tests"},
    "bench": {"tests"},
}
WEB = {"quart", "hypercorn", "quart_trio", "click", "rich", "sqlite3", "psycopg", "stripe"}


@cache
def imports(module: str) -> frozenset[str]:
    """Every module that this one's text imports, but for its types alone."""
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    pending: list[ast.AST] = [parsed(path)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending.extend(node.orelse)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).strip(".")
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
        else:
            pending.extend(ast.iter_child_nodes(node))
    return frozenset(found)


def ours(module: str) -> set[str]:
    return {name for name in imports(module) if name in modules()}


def tops(module: str) -> set[str]:
    return {name.removeprefix("mailprobe.").partition(".")[0] for name in imports(module)}


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_imports_nothing_impure(module):
    assert not tops(module) & IMPURE


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_imports_only_pure_ones_of_ours(module):
    """`engine` itself is named wherever one of its modules is."""
    assert ours(module) - {"mailprobe.engine", "mailprobe.engine.smtp"} <= set(PURE)


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_a_layer_knows_nothing_of_those_above_it(layer):
    for module in modules():
        if module.split(".")[1] == layer:
            assert not tops(module) & FORBIDDEN[layer], module


def test_the_engine_needs_no_web_library_and_no_database():
    for module in modules():
        if module.startswith("mailprobe.engine"):
            assert not tops(module) & WEB, module


def test_nothing_of_the_server_imports_the_command_line():
    """`start` alone runs it; what both need stands below both."""
    for module in modules():
        if module.startswith("mailprobe.api.") and not module.startswith("mailprobe.api.cli"):
            found = {name for name in imported(module) if name.startswith("mailprobe.api.cli")}
            assert not found or module == "mailprobe.api.start", module


def _written_wrong(module, path):
    """Imports of ours that are absolute within their top folder, or not by `mailprobe` between folders."""
    package = len(module.split(".")) - (path.name != "__init__.py")
    top = f"mailprobe.{module.split('.')[1]}"
    for node in nodes_of(parsed(path)):
        match node:
            case ast.ImportFrom(level=0, module=name):
                if f"{name}.".startswith((f"{top}.", "api.", "bench.", "engine.", "storage.")):
                    yield f"from {name}"
            case ast.ImportFrom(level=level, module=name) if level >= package:
                yield f"from {'.' * level}{name or ''}"
            case ast.Import(names=names):
                yield from (
                    f"import {each.name}"
                    for each in names
                    if each.name.split(".")[0] in {"api", "bench", "engine", "storage"}
                )


@pytest.mark.parametrize("top", ["api", "bench", "engine", "storage"])
def test_imports_are_relative_within_a_top_folder_and_by_mailprobe_between_them(top):
    """Readers' tools then find the one file that is meant, and not its second path by a link."""
    found = {
        module: wrong
        for module, path in modules().items()
        if module.split(".")[1] == top and (wrong := list(_written_wrong(module, path)))
    }
    assert not found


@pytest.mark.parametrize("found", [circles_of_files, circles_of_folders], ids=["files", "folders"])
def test_no_files_or_folders_import_each_other_in_a_circle(found):
    """Without circles they can be understood one after the other. Imports for types count."""
    circles = found()
    assert not circles, "\n".join(lines(circles))


def test_the_parser_of_imports_sees_them_all():
    """A test of the tests: imports of every kind that there is in the code."""
    assert "trio" in tops("mailprobe.engine.smtp.host.host")
    assert "mailprobe.engine.smtp.wire" in ours("mailprobe.engine.smtp.host.host")
    assert "mailprobe.engine.smtp.probe" in ours("mailprobe.engine.smtp.host.host")
    assert "ssl" in tops("mailprobe.engine.dns.doh")  # within a function
    # For its type alone.
    assert "mailprobe.bench.world.mail_host" not in ours("mailprobe.bench.world.smtp_script")


# The store's methods that spend, settle or log units -> how often each module calls them.
SPENDING = {
    "reserve": {"reservation": 1},
    "spend": {"reservation": 1},
    "settle": {"reservation": 1},
    "create_job": {"charge": 1, "list_charge": 1},  # the latter: a callback, whose list is counted
    "job_verified": {"charge": 1},
    "record_part": {"list_charge": 1},
    "extend": {"service": 1},
    "log_refusal": {"service": 1},
}


def test_units_are_reserved_and_settled_at_one_place_each():
    """What enters `charge()` is all that spends, and `mailprobe.api.quota` alone has it."""
    found: dict[str, Counter[str]] = {name: Counter() for name in SPENDING}
    for name, path in modules().items():
        if not name.startswith("mailprobe.api."):
            continue
        for node in nodes_of(parsed(path)):
            match node:
                case (
                    ast.Attribute(attr=method, value=ast.Attribute(attr="store" | "_store"))
                    | ast.Attribute(attr=method, value=ast.Name(id="store"))
                ) if method in SPENDING:
                    found[method][name.removeprefix("mailprobe.api.quota.")] += 1
    assert found == SPENDING


def test_the_rule_of_the_tiers_that_are_not_reported_stands_once():
    places = {
        name
        for name, path in modules().items()
        if name.startswith(("mailprobe.storage.", "mailprobe.api.quota.", "mailprobe.api.jobs."))
        and 'tier not in ("free", "own")' in path.read_text("utf-8")
    }
    assert places == {"mailprobe.api.quota.plans"}
