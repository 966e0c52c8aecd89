"""A run ends early only for this machine's or its network's failure, at many hosts and in a row."""

import io
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from mailprobe.api.cli.cleaning.outputs import Order
from mailprobe.api.cli.cleaning.passes import ANSWER_RECENT_S, NO_RECHECK, Passes
from mailprobe.api.cli.cleaning.run import clean_list
from mailprobe.api.cli.output.advice import advice, failure_of
from mailprobe.api.errors import CommandError
from mailprobe.api.listfile.journal import Journal, open_journal
from mailprobe.api.results.counts import FAILED_HOSTS_MIN, ResultCounts
from mailprobe.api.results.row_result import row_result
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.stream.answers import Answer
from mailprobe.engine.verdict import Outcome, judge
from tests.api.cli.cleaning.test_passes import (
    BLOCKED,
    FOUND,
    HEADER,
    NO_DNS,
    SILENT,
    Scripted,
    ScriptedSource,
    distinct,
    passes_over,
)

NO_ROUTE = (Outcome.CONVERSATION_FAILED, VerdictCause("host_down", "network"))
BROKEN = (Outcome.CONVERSATION_FAILED, VerdictCause("host_error", "host"))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(tmp_path / "j", HEADER, resume=False) as journal:
        yield journal


def at_hosts(hosts: int, each: int, name: str = "dead") -> list[str]:
    return [f"a{number}@{name}{host}.test" for host in range(hosts) for number in range(each)]


async def ends_early(
    journal: Journal, addresses: Sequence[str], source: ScriptedSource
) -> str | None:
    """The message of the early end; None if every address was answered."""
    passes = passes_over(journal, addresses, NO_RECHECK)
    try:
        await passes.run(source)
    except CommandError as error:
        assert passes.addresses.answered < len(addresses)
        return error.message
    assert passes.addresses.answered == len(addresses)
    return None


@pytest.mark.parametrize("answer", [SILENT, NO_ROUTE, NO_DNS, BLOCKED, BROKEN])
@pytest.mark.parametrize(
    ("hosts", "each", "is_early"),
    [(1, 400, False), (19, 50, False), (20, 9, False), (20, 10, True), (199, 1, False)],
)
async def test_a_run_ends_early_after_200_results_at_20_hosts(
    autojump_clock: trio.abc.Clock,
    journal: Journal,
    answer: Scripted,
    hosts: int,
    each: int,
    is_early: bool,
) -> None:
    said = await ends_early(journal, at_hosts(hosts, each), ScriptedSource(otherwise=answer))
    assert (said is not None) == is_early


async def test_after_an_answer_the_failed_connections_of_a_host_count_once(
    autojump_clock: trio.abc.Clock, journal: Journal
) -> None:
    scripts = {"ann@shop.test": [FOUND]}
    addresses = ["ann@shop.test", *at_hosts(190, 5)]
    assert await ends_early(journal, addresses, ScriptedSource(scripts, NO_ROUTE)) is None


@pytest.mark.parametrize("answer", [BLOCKED, NO_DNS])
async def test_after_an_answer_each_result_that_no_dead_host_explains_counts(
    autojump_clock: trio.abc.Clock, journal: Journal, answer: Scripted
) -> None:
    scripts = {"ann@shop.test": [FOUND]}
    addresses = ["ann@shop.test", *at_hosts(20, 10)]
    assert await ends_early(journal, addresses, ScriptedSource(scripts, answer)) is not None


async def test_the_early_end_names_the_failure_and_not_what_was_answered(
    autojump_clock: trio.abc.Clock, journal: Journal
) -> None:
    """Most of the list was accepted; the failures are the last ones."""
    found = at_hosts(60, 10, "shop")
    scripts = {address: [FOUND] for address in found}
    scripts |= {address: [BLOCKED] for address in at_hosts(5, 10)}
    source = ScriptedSource(scripts, NO_DNS)
    said = await ends_early(journal, [*found, *at_hosts(30, 10)], source)
    assert said is not None
    assert "most often: DNS look-up failed" in said
    assert {result.email for _, result in journal.answers()} == set(found)


async def test_without_a_journal_to_continue_no_answer_is_lost(
    autojump_clock: trio.abc.Clock,
) -> None:
    addresses = ["ann@shop.test", *at_hosts(25, 10)]
    for scripts, is_early in (({"ann@shop.test": [FOUND]}, False), ({}, True)):
        with open_journal(None, HEADER, resume=False) as journal:
            said = await ends_early(journal, addresses, ScriptedSource(scripts, BLOCKED))
        assert (said is not None) == is_early


@pytest.mark.parametrize(("each", "words"), [(10, "200 results"), (60, "first 30 domains")])
def test_a_run_that_ended_early_goes_on_with_resume(tmp_path: Path, each: int, words: str) -> None:
    """A list of dead hosts: the second run has no more evidence, so it goes to the end."""
    path, output = tmp_path / "list.csv", tmp_path / "out.csv"
    addresses = at_hosts(30, each)
    path.write_text("email\n" + "".join(f"{address}\n" for address in addresses))
    source = ScriptedSource(otherwise=SILENT)

    @asynccontextmanager
    async def open_source() -> AsyncIterator[ScriptedSource]:
        yield source

    with pytest.raises(CommandError, match=words) as failed:
        clean_list(Order(path, output), open_source, standard_output=io.BytesIO())
    assert "the same command with --resume" in failed.value.message
    assert "\n" not in failed.value.message
    asked = len(source.asked)
    assert asked < len(addresses)
    order = Order(path, output, resume=True)
    clean_list(order, open_source, standard_output=io.BytesIO())
    assert output.read_text().count("\n") == 1 + len(addresses)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list.csv", "out.csv"]


def test_every_resumed_run_needs_twice_the_evidence_to_end_early(tmp_path: Path) -> None:
    asked = []
    addresses = at_hosts(99, 10)
    for resume in (False, True, True, True):
        with open_journal(tmp_path / "j", HEADER, resume=resume) as journal:
            passes = Passes(distinct(addresses), journal, NO_RECHECK)
            passes.replay()
            source = ScriptedSource(otherwise=BLOCKED)
            with suppress(CommandError):
                trio.run(passes.run, source)
            assert not journal.damaged
        asked.append(len(source.asked))
    assert asked == [200, 400, 800, len(addresses)]


def test_a_run_without_resume_begins_anew_where_nothing_was_answered(tmp_path: Path) -> None:
    for _ in range(2):
        with open_journal(tmp_path / "j", HEADER, resume=False) as journal:
            passes = Passes(distinct(at_hosts(30, 10)), journal, NO_RECHECK)
            with pytest.raises(CommandError, match="200 results"):
                trio.run(passes.run, ScriptedSource(otherwise=SILENT))


@pytest.mark.parametrize(
    ("ago_s", "is_early"), [(ANSWER_RECENT_S / 2, False), (2 * ANSWER_RECENT_S, True)]
)
async def test_a_recent_answer_of_an_earlier_run_shows_that_hosts_are_reached(
    autojump_clock: trio.abc.Clock, tmp_path: Path, ago_s: float, is_early: bool
) -> None:
    addresses = ["ann@shop.test", *at_hosts(25, 10)]
    with open_journal(tmp_path / "j", HEADER, resume=False) as journal:
        journal.append(row_result(Answer(0, judge("ann@shop.test", FOUND[0])), 1, 0.0))
    with open_journal(tmp_path / "j", HEADER, resume=True) as journal:
        passes = Passes(distinct(addresses), journal, NO_RECHECK, now=lambda: ago_s)
        passes.replay()
        try:
            await passes.run(ScriptedSource(otherwise=SILENT))
        except CommandError:
            assert is_early
        else:
            assert not is_early


# The exit code where every row is written


def counts_of(answers: Sequence[tuple[Scripted, int]]) -> ResultCounts:
    """The counts of results at so many hosts each."""
    counts = ResultCounts()
    for (outcome, cause), hosts in answers:
        for host in range(hosts):
            verdict = judge(f"a@d{host}.test", outcome, mx_found=outcome is not NO_DNS[0])
            counts.count(row_result(Answer(0, verdict, known_cause=cause)))
    return counts


@pytest.mark.parametrize(
    ("answers", "words", "is_failure"),
    [
        ([(SILENT, 1)], "no address got an answer", False),
        ([(SILENT, FAILED_HOSTS_MIN - 1)], "no address got an answer", False),
        ([(SILENT, FAILED_HOSTS_MIN)], "no address got an answer", True),
        ([(BROKEN, FAILED_HOSTS_MIN)], "no address got an answer", True),
        ([(SILENT, FAILED_HOSTS_MIN), (FOUND, 1)], None, False),
        ([(BLOCKED, 1)], "every mail host refuses", False),
        ([(BLOCKED, FAILED_HOSTS_MIN)], "every mail host refuses", True),
        ([(NO_DNS, 1)], "no name could be looked up", True),
    ],
)
def test_a_written_list_is_a_failure_only_if_this_machine_failed(
    answers: Sequence[tuple[Scripted, int]], words: str | None, is_failure: bool
) -> None:
    counts = counts_of(answers)
    failure = failure_of(counts, is_local=True)
    assert (failure is not None) == is_failure
    said = [*advice(counts), failure or ""]
    assert sum("no address got an answer" in line for line in said) <= 1
    assert words is None or any(words in line for line in said)
    remote = failure_of(counts, is_local=False)
    assert (remote is not None) == is_failure
    assert remote is None or "its operator should run mailprobe doctor there" in remote


@pytest.mark.parametrize(("count", "words"), [(1, "1 row looks"), (2, "2 rows look")])
def test_the_advice_counts_one_row_as_one(count: int, words: str) -> None:
    counts = ResultCounts(done=9, suggestions=count)
    counts.reasons.update(accepted=9, greylisted=count, blocked_us=count)
    rows = words.rpartition(" ")[0]
    said = "\n".join(advice(counts))
    assert f"{words} mistyped" in said
    assert f"{rows} is still" in said or count > 1
    assert f"({rows})" in said
