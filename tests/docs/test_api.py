"""The tables of the pages on the API are the code's, and each route has a command that calls it."""

import re
import runpy
from collections.abc import Sequence
from itertools import product
from typing import Any, get_args

import msgspec
import pytest

from mailprobe.api.error_table import TABLE as ERRORS
from mailprobe.api.operations.account import ManagementAccountResponse
from mailprobe.api.operations.operation import Operation
from mailprobe.api.operations.table import OPERATIONS
from mailprobe.api.operations.usage import ManagementUsageResponse, ManagementUsageSummaryResponse
from mailprobe.api.operations.verify import BatchVerifyResponse
from mailprobe.api.quota.plans import MICROS_PER_EUR, SOLD
from mailprobe.engine.evidence import Evidence
from mailprobe.engine.verdict import FIELDS, LIGHTS, Outcome, Status, judge, light_of
from tests.docs.pages import ROOT, bare, blocks_in, headings_of, table_of


def test_the_routes_are_the_operations() -> None:
    rows = table_of("docs/routes.md", "method", "path", "key", "does")
    reported = [(method, bare(path), key) for method, path, key, _ in rows]
    assert reported == [(o.method, o.path, o.key or "none") for o in OPERATIONS]


CALLED = [one for one in OPERATIONS if not one.raw]  # Stripe calls the others


@pytest.mark.parametrize("operation", CALLED, ids=lambda operation: operation.name)
def test_each_route_has_a_command_that_calls_it(operation: Operation) -> None:
    name = {"jobs": "$JOB_ID", "lists": "$LIST_ID"}.get(operation.section, "$KEY_ID")
    path = operation.path.replace("{id}", name).replace("{email}", "$EMAIL")
    calls = re.compile(rf"\bcurl\b.*\$BASE_URL{re.escape(path)}(?![\w/])")
    assert any(calls.search(block.text) for block in [*blocks_in("sh"), *blocks_in("console")])


def test_the_fields_of_bodies_are_the_codes() -> None:
    fields = [bare(row[0]) for row in table_of("docs/api.md", "field", "type", "meaning")]
    assert fields == [
        "email",
        "webhook",
        "webhook_secret",
        "async",
        *FIELDS,
        *BatchVerifyResponse.__struct_fields__,
    ]
    evidence = table_of("docs/verdicts.md", "field of `evidence`", "holds")
    assert [bare(row[0]) for row in evidence] == [*Evidence.__struct_fields__]
    reported: dict[str, set[str]] = {}
    for body, names, _ in table_of("docs/management.md", "of", "field", "meaning"):
        reported.setdefault(body, set()).update(re.findall(r"`(\w+)`", names))
    assert reported == {
        "account": set(ManagementAccountResponse.__struct_fields__),
        "usage": set(ManagementUsageResponse.__struct_fields__),
        "summary": set(ManagementUsageSummaryResponse.__struct_fields__),
    }


def test_every_error_is_described_with_its_status() -> None:
    rows = table_of("docs/errors.md", "code", "status", "when", "what to do")
    assert len({bare(row[0]) for row in rows}) == len(rows)
    assert {(bare(row[0]), int(row[1])) for row in rows} == {
        (error.code, error.status) for error in ERRORS.values()
    }


def test_links_of_error_bodies_are_headings_of_the_page() -> None:
    anchors = {error.anchor for error in ERRORS.values()} - {None}
    anchors |= {operation.section for operation in OPERATIONS}
    assert anchors <= headings_of(ROOT / "docs/api.md")


def test_the_tiers_are_the_codes() -> None:
    header = ("tier", "a minute, each key", "a month, the account", "standard keys")
    rows = table_of("docs/api.md", *header, "beyond, each", "usage rows kept")
    assert {bare(tier): [*map(number_in, cells)] for tier, *cells in rows} == {
        tier: [
            plan.rate_limit_per_min,
            plan.monthly_calls,
            plan.max_keys,
            plan.price_micros_per_call / MICROS_PER_EUR,
            plan.retention_days,
        ]
        for tier, plan in SOLD.items()
    }


def number_in(cell: str) -> float:
    """The number that a cell begins with; 0 for none."""
    found = re.match(r"[\d.]+", cell)
    return float(found[0]) if found else 0


def test_the_lights_are_the_codes() -> None:
    rows = table_of("docs/verdicts.md", "rule", "where", "light", "do")
    assert [row[2] for row in rows] == [light for _, light in LIGHTS]
    assert [*dict.fromkeys(row[0] for row in rows)] == [*"12345678"]


def test_the_example_gives_the_same_lights() -> None:
    """Each outcome, as it comes and with any one field otherwise."""
    light_in_example = runpy.run_path(str(ROOT / "examples/stream.py"))["light_of"]
    others: dict[str, Sequence[Any]] = {
        "suggestion": ["gmail.com"],
        "disposable": [True],
        "smtp_blocked": [True],
        "catch_all": [True],
        "valid": [True, False],
        "status": get_args(Status),
        "confidence": [0.0, 0.49, 0.5, 0.74, 0.75, 0.89, 0.9, 1.0],
    }
    for outcome, mx_found in product(Outcome, (False, True)):
        known = judge("ann@example.org", outcome, mx_found=mx_found)
        changed = [{name: value} for name, values in others.items() for value in values]
        for change in [{}, *changed]:
            verdict = msgspec.structs.replace(known, **change)
            assert light_in_example(msgspec.to_builtins(verdict)) == light_of(verdict), verdict
