"""The second pass, and the early end where this machine or its network fails."""

import csv
import io
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from mailprobe.api.cli.cleaning.addresses import DistinctAddresses
from mailprobe.api.cli.cleaning.outputs import Order, output_path
from mailprobe.api.cli.cleaning.passes import (
    FAILURES_IN_A_ROW_MAX,
    FIRST_DOMAINS_MAX,
    LONG,
    NO_RECHECK,
    Passes,
    Recheck,
)
from mailprobe.api.cli.cleaning.run import clean_list
from mailprobe.api.errors import CommandError
from mailprobe.api.listfile.journal import VERSION, Header, Journal, open_journal
from mailprobe.api.listfile.results import ResultColumns
from mailprobe.api.listfile.selection import Selection
from mailprobe.api.results.row_result import row_result
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.stream.answers import Answer
from mailprobe.engine.verdict import NO_SIGNALS, Outcome, Signals, judge

HEADER = Header(VERSION, 10, "ab" * 32)
GREYLISTED = (Outcome.TEMPORARY, VerdictCause("greylisted", "host"))
FOUND = (Outcome.DELIVERABLE, VerdictCause("accepted", None))
BLOCKED = (Outcome.REFUSED_BY_POLICY, VerdictCause("blocked_us", "us"))
NO_DNS = (Outcome.RESOLVER_FAILED, VerdictCause("resolver", "network"))
SILENT = (Outcome.TIMED_OUT, VerdictCause("timeout", "host"))
TYPO = Signals(suggestion="gmail.com")
SYNTAX = (Outcome.SYNTAX, VerdictCause("syntax", "address"))
Scripted = tuple[Outcome, VerdictCause]
UNCONFIRMED = (Outcome.UNCONFIRMED, VerdictCause("unconfirmed", "host"))


@dataclass
class ScriptedSource:
    """Answers the n-th question about an address with the n-th word of its script, then the last."""

    scripts: dict[str, list[Scripted]] = field(default_factory=dict)
    otherwise: Scripted = FOUND
    asked: list[tuple[float, str]] = field(default_factory=list)  # (trio's clock, address)
    wait_s: float = 60.0  # after which an unconfirmed one may be asked again

    @asynccontextmanager
    async def open_answers(
        self, texts: Sequence[str], *, explain: bool = False, patient: bool = False
    ) -> AsyncIterator[AsyncIterator[Answer]]:
        async with aclosing(self._answers(texts)) as answers:
            yield answers

    async def _answers(self, texts: Sequence[str]) -> AsyncGenerator[Answer, None]:
        for position, text in enumerate(texts):
            script = self.scripts.get(text, [self.otherwise])
            number = sum(address == text for _, address in self.asked)
            outcome, cause = script[min(number, len(script) - 1)]
            self.asked.append((trio.current_time(), text))
            found = outcome not in (Outcome.SYNTAX, Outcome.RESOLVER_FAILED)
            signals = TYPO if text.endswith("@gmial.com") else NO_SIGNALS
            verdict = judge(text, outcome, signals, mx_found=found)
            wait_s = self.wait_s if cause.reason == "unconfirmed" else None
            yield Answer(position, verdict, known_cause=cause, retry_s=wait_s)

    @property
    def addresses(self) -> list[str]:
        return [address for _, address in self.asked]


def distinct(addresses: Sequence[str]) -> DistinctAddresses:
    found = DistinctAddresses()
    for address in addresses:
        found.add(address)
    return found


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(tmp_path / "j", HEADER, resume=False) as journal:
        yield journal


def results_of(passes: Passes) -> dict[str, tuple[str, str, int]]:
    """Of each address: status, reason and attempts."""
    found: dict[str, tuple[str, str, int]] = {}
    for address in passes.addresses.numbers:
        offset = passes.addresses.offset(address)
        assert offset is not None
        result = passes.journal.answer(offset)
        found[address] = (result.status, result.reason, result.attempts)
    return found


def passes_over(journal: Journal, addresses: Sequence[str], recheck: Recheck) -> Passes:
    return Passes(distinct(addresses), journal, recheck, now=trio.current_time)


# The second pass


async def test_a_passing_result_is_verified_again_after_the_wait(
    autojump_clock: trio.abc.Clock, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ScriptedSource({"grey@a.test": [GREYLISTED, FOUND]})
    passes = passes_over(journal, ["ann@a.test", "grey@a.test"], Recheck(2, (300,)))
    began = trio.current_time()
    await passes.run(source)
    assert source.asked[-1] == (began + 300, "grey@a.test")
    assert len(source.asked) == 3
    assert results_of(passes) == {
        "ann@a.test": ("deliverable", "accepted", 1),
        "grey@a.test": ("deliverable", "accepted", 2),
    }
    assert passes.counts.statuses == {"deliverable": 2, "unknown": 0}
    said = capsys.readouterr().err
    assert "to ask about 1 address again (1 host asks to come back later)" in said
    assert "1 of 1 are known now" in said


@pytest.mark.parametrize("passes_max", [0, 1, 2])
async def test_an_address_is_verified_again_at_most_as_often_as_set(
    autojump_clock: trio.abc.Clock, journal: Journal, passes_max: int
) -> None:
    source = ScriptedSource(otherwise=GREYLISTED)
    passes = passes_over(journal, ["ann@a.test"], Recheck(passes_max, (10,)))
    await passes.run(source)
    assert source.addresses == ["ann@a.test"] * (1 + passes_max)
    assert results_of(passes)["ann@a.test"] == ("unknown", "greylisted", 1 + passes_max)
    assert passes.counts.done == 1


async def test_each_pass_has_its_wait_and_the_last_one_repeats(
    autojump_clock: trio.abc.Clock, journal: Journal
) -> None:
    source = ScriptedSource({"b@a.test": [GREYLISTED, GREYLISTED, FOUND]}, otherwise=GREYLISTED)
    written: list[tuple[float, int]] = []
    passes = passes_over(journal, ["a@a.test", "b@a.test"], Recheck(3, (5, 30)))
    began = trio.current_time()
    passes.write = lambda: written.append((len(source.asked), passes.counts.statuses["unknown"]))
    await passes.run(source)
    assert [(at - began, text[0]) for at, text in source.asked] == [
        (0, "a"), (0, "b"), (5, "a"), (5, "b"), (35, "a"), (35, "b"), (65, "a"),
    ]  # fmt: skip
    assert written == [(2, 2), (4, 2), (6, 1)]  # before each wait


async def test_a_pass_that_was_interrupted_is_ended_before_the_next_wait(
    autojump_clock: trio.abc.Clock, journal: Journal
) -> None:
    """Of two addresses one was asked twice: the other does not wait for its long time."""
    source = ScriptedSource(otherwise=GREYLISTED)
    passes = passes_over(journal, ["a@a.test", "b@a.test"], Recheck(2, (5, 3600)))
    for attempts, text in ((1, "a@a.test"), (1, "b@a.test"), (2, "a@a.test")):
        answer = Answer(0, judge(text, GREYLISTED[0], mx_found=True), known_cause=GREYLISTED[1])
        journal.append(row_result(answer, attempts, trio.current_time()))
    passes.replay()
    began = trio.current_time()
    await passes.run(source)
    assert [(at - began, text[0]) for at, text in source.asked] == [
        (5, "b"), (3605, "a"), (3605, "b"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "answer", [BLOCKED, (Outcome.MAILBOX_FULL, VerdictCause("full", "address"))]
)
async def test_a_final_result_is_verified_once(
    autojump_clock: trio.abc.Clock, journal: Journal, answer: Scripted
) -> None:
    source = ScriptedSource(otherwise=answer)
    await passes_over(journal, ["ann@a.test"], Recheck(2, (10,))).run(source)
    assert source.addresses == ["ann@a.test"]


async def test_due_times_are_kept_for_a_run_that_resumes(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    path, recheck = tmp_path / "j", Recheck(2, (300,))
    source = ScriptedSource({"grey@a.test": [GREYLISTED, FOUND]})
    began = trio.current_time()
    with open_journal(path, HEADER, resume=False) as journal:
        with trio.move_on_after(100):
            await passes_over(journal, ["grey@a.test"], recheck).run(source)
    with open_journal(path, HEADER, resume=True) as journal:
        second = passes_over(journal, ["grey@a.test"], recheck)
        second.replay()
        await second.run(source)
        assert source.asked[-1] == (began + 300, "grey@a.test")
        assert results_of(second)["grey@a.test"] == ("deliverable", "accepted", 2)
    with open_journal(path, HEADER, resume=True) as journal:
        third = passes_over(journal, ["grey@a.test"], recheck)
        third.replay()
        await third.run(source)
        assert len(source.asked) == 2
        assert third.counts.statuses == {"unknown": 0, "deliverable": 1}


async def test_a_clock_that_was_ahead_in_an_earlier_run_delays_nothing(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    path, recheck, year_s = tmp_path / "j", Recheck(2, (300,), patience_s=900.0), 365 * 86_400.0
    addresses = ["grey@a.test", "waits@b.test"]
    source = ScriptedSource(
        {"grey@a.test": [GREYLISTED, FOUND], "waits@b.test": [UNCONFIRMED, FOUND]}
    )
    with open_journal(path, HEADER, resume=False) as journal:
        first = passes_over(journal, addresses, recheck)
        first.now = lambda: trio.current_time() + year_s
        with trio.move_on_after(30):
            await first.run(source)
    began = trio.current_time()
    with open_journal(path, HEADER, resume=True) as journal:
        second = passes_over(journal, addresses, recheck)
        second.replay()
        await second.run(source)
        assert {status for status, *_ in results_of(second).values()} == {"deliverable"}
    assert [address for _, address in source.asked[2:]] == ["waits@b.test", "grey@a.test"]
    assert trio.current_time() - began <= 301


# Waits for mail hosts


async def test_waits_grow_until_the_patience_ends(
    autojump_clock: trio.abc.Clock, journal: Journal
) -> None:
    source = ScriptedSource(otherwise=UNCONFIRMED)
    began = trio.current_time()
    await passes_over(journal, ["a@a.test"], Recheck(patience_s=7200.0)).run(source)
    minutes = [(at - began) / 60 for at, _ in source.asked]
    assert minutes == [0, 1, 3, 7, 15, 31, 61, 91, 120]


async def test_a_host_that_asks_for_longer_waits_gets_them(
    autojump_clock: trio.abc.Clock, journal: Journal
) -> None:
    source = ScriptedSource(otherwise=UNCONFIRMED, wait_s=2400.0)
    began = trio.current_time()
    await passes_over(journal, ["a@a.test"], Recheck(patience_s=7200.0)).run(source)
    assert [(at - began) / 60 for at, _ in source.asked] == [0, 40, 80, 120]


async def test_waits_use_up_no_recheck(autojump_clock: trio.abc.Clock, journal: Journal) -> None:
    script = [UNCONFIRMED, UNCONFIRMED, UNCONFIRMED, GREYLISTED, GREYLISTED, FOUND]
    source = ScriptedSource({"a@a.test": script})
    passes = passes_over(journal, ["a@a.test"], Recheck(2, (300,)))
    began = trio.current_time()
    await passes.run(source)
    assert [(at - began) / 60 for at, _ in source.asked] == [0, 1, 3, 7, 12, 17]
    assert results_of(passes) == {"a@a.test": ("deliverable", "accepted", 6)}


# The early end


@pytest.mark.parametrize("answer", [BLOCKED, NO_DNS, SILENT])
async def test_failures_of_this_machine_in_a_row_end_the_run_and_are_forgotten(
    autojump_clock: trio.abc.Clock, journal: Journal, answer: Scripted
) -> None:
    addresses = [f"a{number}@d{number}.test" for number in range(LONG - 1)]
    scripts = {} if answer is SILENT else {address: [FOUND] for address in addresses[:100]}
    scripts |= {address: [SYNTAX] for address in addresses[::7]}  # says nothing of this machine
    source = ScriptedSource(scripts, otherwise=answer)
    passes = passes_over(journal, addresses, Recheck(2, (10,)))
    with pytest.raises(CommandError, match="200 results in a row") as failed:
        await passes.run(source)
    assert "\n" not in failed.value.message
    assert "mailprobe doctor" in failed.value.message
    kept = {result.email for _, result in journal.answers()}
    assert kept == {address for address in source.addresses if scripts.get(address) == [FOUND]} | {
        address for address in addresses[: len(kept)] if scripts.get(address) == [SYNTAX]
    }
    assert passes.addresses.answered == len(kept)
    second = ScriptedSource()
    await Passes(passes.addresses, journal, NO_RECHECK).run(second)
    assert set(second.addresses) == set(addresses) - kept


async def test_failures_between_answers_end_nothing(
    autojump_clock: trio.abc.Clock, journal: Journal
) -> None:
    addresses = [f"a{number}@d{number}.test" for number in range(LONG - 1)]
    scripts = {each: [FOUND] for each in addresses[:: FAILURES_IN_A_ROW_MAX - 1]}
    passes = passes_over(journal, addresses, NO_RECHECK)
    await passes.run(ScriptedSource(scripts, otherwise=BLOCKED))
    assert passes.counts.done == len(addresses)


async def test_hosts_that_are_silent_after_others_have_answered_end_nothing(
    autojump_clock: trio.abc.Clock, journal: Journal
) -> None:
    addresses = [f"a{number}@d{number}.test" for number in range(LONG - 1)]
    passes = passes_over(journal, addresses, NO_RECHECK)
    await passes.run(ScriptedSource({addresses[0]: [FOUND]}, otherwise=SILENT))
    assert passes.counts.done == len(addresses)


@pytest.mark.parametrize("answer", [NO_DNS, SILENT, BLOCKED])
async def test_a_long_list_stops_if_its_first_domains_give_no_answer(
    autojump_clock: trio.abc.Clock, journal: Journal, answer: Scripted
) -> None:
    addresses = [f"a{number}@d{number // 10}.test" for number in range(LONG)]
    source = ScriptedSource(otherwise=answer)
    with pytest.raises(CommandError, match="first 30 domains"):
        await passes_over(journal, addresses, NO_RECHECK).run(source)
    assert source.addresses == addresses[: FIRST_DOMAINS_MAX * 10 : 10]
    assert list(journal.answers()) == []


async def test_the_addresses_tried_first_are_not_verified_twice(
    autojump_clock: trio.abc.Clock, journal: Journal
) -> None:
    addresses = [f"a{number}@d{number // 10}.test" for number in range(LONG)]
    source = ScriptedSource()
    await passes_over(journal, addresses, NO_RECHECK).run(source)
    assert sorted(source.addresses) == sorted(addresses)


# Which rows are written

LIST = """name,email
Ann,ann@shop.test
Bob,nobody@shop.test
Cy,catch@shop.test
,
Ann again,ann@SHOP.test
Dan,dan@gmial.com
"""


def cleaned(path: Path, order: Order) -> dict[str, list[dict[str, str]]]:
    """The rows of each file that was written."""
    path.write_text(LIST)
    source = ScriptedSource(
        {
            "nobody@shop.test": [(Outcome.UNDELIVERABLE, VerdictCause("no_mailbox", "address"))],
            "catch@shop.test": [(Outcome.CATCH_ALL, VerdictCause("catch_all", "host"))],
        }
    )

    @asynccontextmanager
    async def open_source() -> AsyncIterator[ScriptedSource]:
        yield source

    summary = clean_list(order, open_source, standard_output=io.BytesIO())
    rows = {
        output.name: list(csv.DictReader(io.StringIO(output.read_text())))
        for output in summary.outputs
    }
    assert summary.written == sum(map(len, rows.values()))
    assert summary.rows == 6
    return rows


def test_only_rows_of_the_lights_are_written(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    only = Selection(frozenset({"GREEN_LIGHT", "YELLOW_LIGHT"}))
    (rows,) = cleaned(path, Order(path, output_path(path), selection=only)).values()
    assert [row["name"] for row in rows] == ["Ann", "Cy", "Ann again", "Dan"]


def test_the_first_row_of_each_mailbox_is_written(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    order = Order(path, output_path(path), selection=Selection(dedupe=True))
    (rows,) = cleaned(path, order).values()
    assert [row["name"] for row in rows] == ["Ann", "Bob", "Cy", "", "Dan"]


def test_three_files_hold_each_row_once(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    files = cleaned(path, Order(path, tmp_path / "out.csv", split=True))
    assert {name: [row["name"] for row in rows] for name, rows in files.items()} == {
        "out.keep.csv": ["Ann", "Ann again"],
        "out.confirm.csv": ["Cy", "Dan"],
        "out.drop.csv": ["Bob", ""],
    }
    assert not (tmp_path / "out.csv").exists()


def test_a_corrected_address_stands_beside_a_mistyped_one(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    (rows,) = cleaned(path, Order(path, output_path(path), suggest=True)).values()
    assert [row["suggested"] for row in rows] == ["", "", "", "", "", "dan@gmail.com"]
    assert list(rows[0])[-1] == "suggested"


def test_a_suggestion_is_no_formula() -> None:
    result = row_result(Answer(0, judge("=1+2@gmial.com", Outcome.DELIVERABLE, TYPO)))
    columns = ResultColumns(suggest=True)
    assert columns.defused(columns.cells(result))[-1] == "'=1+2@gmail.com"
