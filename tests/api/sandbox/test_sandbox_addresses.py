"""The answers of test keys, address by address, beside the table in docs/sandbox.md."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from mailprobe.api.error_table import row_of
from mailprobe.api.sandbox.addresses import ANSWERS, REFUSALS, refusal_for, verify
from mailprobe.api.sandbox.stream import open_sandbox_answers
from mailprobe.engine import Verdict
from mailprobe.engine.lists.lists import Lists, load_lists
from mailprobe.engine.verdict import LADDER

PAGE = (Path(__file__).parents[3] / "docs/sandbox.md").read_text()
NOW = datetime(2030, 12, 31, 23, 59, tzinfo=UTC)


@pytest.fixture(scope="module")
def lists() -> Lists:
    return load_lists()


def verdict_of(text: str, lists: Lists) -> Verdict:
    return verify(text, 0, lists, began=0.0).verification.verdict(text, 0.0)


def rows_of_page(columns: int) -> Iterator[list[str]]:
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == columns:
            yield [cells[0].strip("`"), *cells[1:]]


@pytest.mark.parametrize("row", list(rows_of_page(4)), ids=lambda row: row[0])
def test_the_page_says_what_an_address_gets(row: list[str], lists: Lists) -> None:
    name, status, failed_check, _ = row
    verdict = verdict_of(f"{name}@sandbox.test", lists)
    assert (verdict.status, verdict.failed_check or "") == (status, failed_check)


@pytest.mark.parametrize("row", list(rows_of_page(3)), ids=lambda row: row[0])
def test_the_page_says_what_a_refusal_is(row: list[str]) -> None:
    name, status, code = row
    refusal = refusal_for(["deliverable@sandbox.test", f"{name}@sandbox.test"], NOW)
    assert refusal is not None
    assert (str(row_of(refusal).status), row_of(refusal).code) == (status, code)


def test_the_page_has_every_row() -> None:
    named = [row[0] for row in rows_of_page(4)] + [row[0] for row in rows_of_page(3)]
    assert named == [*ANSWERS, "slow-2000", *REFUSALS]


@pytest.mark.parametrize("name", ANSWERS)
def test_each_answer_is_a_rung_of_the_ladder(name: str, lists: Lists) -> None:
    """Anything may follow a `+`, in any case; the text is repeated as it came."""
    text = f"{name.upper()}+Run.7@Sandbox.Test"
    verdict, rung = verdict_of(text, lists), LADDER[ANSWERS[name].outcome]
    assert verdict.email == text
    assert (verdict.status, verdict.valid, verdict.confidence, verdict.failed_check) == rung
    assert verdict.mx_found == (verdict.mx_host is not None) == ANSWERS[name].has_route


def test_signals_are_as_the_name_says(lists: Lists) -> None:
    assert verdict_of("role@sandbox.test", lists).role
    assert verdict_of("info@sandbox.test", lists).role
    assert verdict_of("free@sandbox.test", lists).free_provider
    assert verdict_of("typo@sandbox.test", lists).suggestion == "gmail.com"
    assert verdict_of("blocked@sandbox.test", lists).smtp_blocked
    assert verdict_of("catch_all@sandbox.test", lists).catch_all
    assert verdict_of("disposable@sandbox.test", lists).disposable


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("ann@example.com", "deliverable"),
        ("no address", "invalid"),
        ("ann@mailinator.com", "invalid"),
        ("full@sandbox.test.example.com", "deliverable"),
        ("full@other.test", "deliverable"),
        ("anything@sandbox.test", "deliverable"),
        ('"full"@sandbox.test', "deliverable"),
        ("@sandbox.test", "invalid"),
        ("+full@sandbox.test", "deliverable"),
        ("full@@sandbox.test", "invalid"),
        ("", "invalid"),
    ],
)
def test_any_other_address_is_judged_by_its_text_and_the_lists(
    text: str, status: str, lists: Lists
) -> None:
    assert verdict_of(text, lists).status == status


def test_a_refusal_needs_the_domain() -> None:
    assert refusal_for(["quota@example.com", "ann@quota.test", "quota"], NOW) is None


def test_a_quota_ends_with_the_month() -> None:
    refusal = refusal_for(["quota+x@sandbox.test"], NOW)
    assert getattr(refusal, "reset_at") == datetime(2031, 1, 1, tzinfo=UTC)  # noqa: B009


async def test_answers_come_as_they_are_ready(lists: Lists, autojump_clock: object) -> None:
    texts = ["slow-2000@sandbox.test", "slow-99999@sandbox.test", "full@sandbox.test"]
    began = trio.current_time()
    async with open_sandbox_answers(lists, texts) as answers:
        came = [
            (answer.position, round(trio.current_time() - began, 3), answer.verdict.latency_ms)
            async for answer in answers
        ]
    assert came == [(2, 0.0, 0), (0, 2.0, 2000), (1, 3.0, 3000)]


async def test_leaving_cancels_what_is_slow(lists: Lists, autojump_clock: object) -> None:
    began = trio.current_time()
    async with open_sandbox_answers(lists, ["slow-3000@sandbox.test"]):
        pass
    assert trio.current_time() == began


async def test_no_address_is_an_empty_stream(lists: Lists) -> None:
    async with open_sandbox_answers(lists, []) as answers:
        assert [answer async for answer in answers] == []


async def test_evidence_names_the_sandbox(lists: Lists) -> None:
    async with open_sandbox_answers(lists, ["full@sandbox.test"], explain=True) as answers:
        (answer,) = [answer async for answer in answers]
    assert answer.evidence is not None
    assert answer.evidence.rule == "sandbox"
    assert not re.search("250|RCPT", str(answer.evidence.conversation))
