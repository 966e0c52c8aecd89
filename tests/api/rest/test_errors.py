"""The table of refusals: each has its texts and its four fields."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from mailprobe.api import refusals
from mailprobe.api.error_table import TABLE, body_of, body_of_code, headers_of, row_of
from mailprobe.api.operations.examples import REFUSALS
from mailprobe.api.operations.table import OPERATIONS
from mailprobe.api.refusals import Refusal, Section
from mailprobe.storage.records import EPOCH
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


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: type(refusal).__name__)
def test_every_body_has_its_four_fields_and_no_template_left_in_it(refusal: Refusal) -> None:
    body: dict[str, Any] = msgspec.to_builtins(body_of(refusal, PLACES))
    for name in ("error", "message", "action", "docs"):
        assert isinstance(body[name], str)
        assert body[name]
        assert not set(body[name]) & {"{", "}"}
    assert body["docs"].startswith("https://docs.test/api#")


@pytest.mark.parametrize(
    ("refusal", "status", "code", "more"),
    [
        (refusals.InvalidRequest("x"), 400, "invalid_request", set()),
        (refusals.MissingKey(), 401, "missing_api_key", set()),
        (refusals.InvalidKey(), 401, "invalid_api_key", set()),
        (refusals.HardCapReached(1.0, 0.5), 402, "payment_required",
         {"hard_cap_eur", "current_overage_eur"}),
        (refusals.NoBillingAccount(), 402, "no_billing_account", set()),
        (refusals.WrongKeyType(), 403, "wrong_key_type", set()),
        (refusals.NoSuchRoute(), 404, "not_found", set()),
        (refusals.KeyNotFound(), 404, "key_not_found", set()),
        (refusals.MethodNotAllowed("PUT", "GET"), 405, "method_not_allowed", set()),
        (refusals.SlowBody(10), 408, "request_timeout", set()),
        (refusals.SlowUpload(64, 10), 408, "request_timeout", set()),
        (refusals.IdempotencyRunning(), 409, "idempotency_in_progress", set()),
        (refusals.AnswerLost(), 409, "idempotency_answer_lost", set()),
        (refusals.KeysTooFast(20, EPOCH, EPOCH, 1), 429, "rate_limit_exceeded",
         {"limit", "window", "reset_at"}),
        (refusals.ListsTooFast(20, EPOCH, EPOCH, 1), 429, "rate_limit_exceeded",
         {"limit", "window", "reset_at"}),
        (refusals.TooManyLists(10), 429, "list_limit_reached", set()),
        (refusals.TooManyKeptLists(100), 429, "list_limit_reached", set()),
        (refusals.ListsTooLarge(64), 429, "list_limit_reached", set()),
        (refusals.TooManyJobs(10_000), 429, "job_limit_reached", set()),
        (refusals.PayloadTooLarge(1), 413, "payload_too_large", set()),
        (refusals.UnsupportedCoding("br"), 415, "unsupported_media_type", set()),
        (refusals.IdempotencyReused(), 422, "idempotency_key_reused", set()),
        (refusals.TooManyKeys(2), 429, "key_limit_reached", set()),
        (refusals.OurFault("7"), 500, "internal_error", set()),
        (refusals.Overloaded(), 503, "overloaded", set()),
        (refusals.UsageUnknown(), 503, "quota_check_failed", set()),
        (refusals.ProbingUnavailable(), 503, "probing_unavailable", set()),
    ],
)  # fmt: skip
def test_status_code_and_fields(refusal: Refusal, status: int, code: str, more: set[str]) -> None:
    body = msgspec.to_builtins(body_of(refusal, PLACES))
    assert (row_of(refusal).status, body["error"]) == (status, code)
    assert set(body) - {"error", "message", "action", "docs"} == more


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


def test_waiting_does_not_help_against_too_many_keys() -> None:
    assert headers_of(refusals.TooManyKeys(2)) == {}


def test_a_callers_text_is_never_used_as_a_template() -> None:
    body = body_of(refusals.InvalidRequest("{places} {0} {why!r}"), PLACES)
    assert body.message == "{places} {0} {why!r}"


def test_the_404_lists_the_verify_routes_and_the_description() -> None:
    action = body_of(refusals.NoSuchRoute(), PLACES).action
    for path in ("verify,", "verify/batch", "verify/stream", "openapi.json"):
        assert path in action


@pytest.mark.parametrize(
    "code",
    ["invalid_request", "request_timeout", "payload_too_large", "internal_error", "overloaded"],
)
def test_the_server_below_has_bodies_for_its_own_refusals(code: str) -> None:
    assert body_of_code(code, PLACES).error == code
