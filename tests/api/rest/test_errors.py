"""The table of refusals: each has its texts and its four fields."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from mailprobe.api import refusals
from mailprobe.api.error_table import TABLE, body_of, headers_of, octets_of_code
from mailprobe.api.operations.examples import REFUSALS
from mailprobe.api.operations.table import OPERATIONS
from mailprobe.api.refusals import Refusal, Section
from tests.api.service_fixture import PLACES

DOCUMENTATION = Path(__file__).parents[3] / "docs/api.md"


def test_every_docs_link_leads_to_a_heading_of_the_documentation() -> None:
    """Of both servers: their types allow no other anchors, see `Section`."""
    headings = re.findall(r"^#+ (.+)$", DOCUMENTATION.read_text("utf-8"), re.M)
    anchors = {re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings}
    assert set(get_args(Section)) <= anchors
    reported = {row.anchor for row in TABLE.values()} | {each.section for each in OPERATIONS}
    assert reported - {None} <= set(get_args(Section))


def subclasses(kind: type[Refusal]) -> set[type[Refusal]]:
    return {kind} | {deep for sub in kind.__subclasses__() for deep in subclasses(sub)}


def test_every_refusal_has_its_row_and_its_example() -> None:
    known = subclasses(Refusal) - {Refusal}
    assert set(TABLE) == known
    assert {type(refusal) for refusal in REFUSALS} == known


def test_both_limits_say_when_and_only_one_has_a_window() -> None:
    at = datetime(2026, 3, 14, tzinfo=UTC)
    reset = at + timedelta(seconds=12.25)
    rate = msgspec.to_builtins(body_of(refusals.RateLimited(10, at, reset, 1), PLACES))
    assert (rate["limit"], rate["window"]) == (10, "1m")
    assert rate["reset_at"] == "2026-03-14T00:00:12.250000Z"
    quota = msgspec.to_builtins(body_of(refusals.QuotaExhausted(500, 499, at, reset, 2), PLACES))
    assert (quota["limit"], quota["used"]) == (500, 499)
    assert "window" not in quota
    for refusal in (
        refusals.RateLimited(10, at, reset, 1),
        refusals.QuotaExhausted(5, 5, at, reset, 1),
    ):
        assert headers_of(refusal) == {"Retry-After": "13"}


def test_a_callers_text_is_never_used_as_a_template() -> None:
    body = body_of(refusals.InvalidRequest("{places} {0} {why!r}"), PLACES)
    assert body.message == "{places} {0} {why!r}"


@pytest.mark.parametrize(
    "code",
    ["invalid_request", "request_timeout", "payload_too_large", "internal_error", "overloaded"],
)
def test_the_server_below_has_bodies_for_its_own_refusals(code: str) -> None:
    assert msgspec.json.decode(octets_of_code(code, PLACES))["error"] == code
