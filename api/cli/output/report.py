"""Prints verdicts and summaries as tables for a person.

Text from outside (an address, a reply, a host name) passes `plain` and goes to rich as
Text, so that neither escape sequences nor markup have any effect.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mailprobe.engine.address import NotAnAddress, parse
from mailprobe.engine.evidence import ConversationLine, Evidence
from mailprobe.engine.verdict import light_of

from ...results.advice import ANSWERS, answer_of
from ...results.counts import ResultCounts, duration
from ...results.lights import LIGHT_COLOURS, STATUS_COLOURS, WORDS
from ...results.row_result import RowResult
from ...terminal import plain
from .advice import advice
from .summary import Summary, cell_notes, counted

OTHERS_COLUMNS = 59  # what the columns beside the address need
WIDE_COLUMNS = 119  # enough for a mail host beside its address
REASONS_MAX = 6  # lines of the summary, which fits on one screen
PIPE_COLUMNS = 200  # without a terminal, wide enough to wrap nothing

VERDICTS: dict[str, str] = {light: answer.word for light, answer in ANSWERS.items()}
TERMINAL_COLOURS = {"grey": "bright_black"}  # others have rich's names
STYLES: dict[str, str] = {
    name: TERMINAL_COLOURS.get(colour, colour)
    for name, colour in (*LIGHT_COLOURS.items(), *STATUS_COLOURS.items())
}


def console_on(stream: TextIO) -> Console:
    """A console without markup, emoji or highlighting: it prints text verbatim."""
    width = None if stream.isatty() else PIPE_COLUMNS
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def print_verdicts(console: Console, verdicts: Sequence[RowResult]) -> None:
    """Print a table, or where an address leaves no room for it, two lines for each address.

    An address is never broken, so that it can be copied.
    """
    longest = max((cell_len(plain(verdict.email)) for verdict in verdicts), default=0)
    if longest <= console.width - OTHERS_COLUMNS:
        console.print(verdict_table(verdicts, console.width))
        return
    for verdict in verdicts:
        console.print(Text(plain(verdict.email), style="bold"), soft_wrap=True)
        parts = [verdict.status, _why(verdict), plain(verdict.mx_host or "")]
        rest = "; ".join(filter(None, [*parts, f"{verdict.latency_ms:,} ms"]))
        console.print(Text.assemble("  ", _word(verdict), "  ", rest))


def _word(verdict: RowResult) -> Text:
    """Keep, Confirm or Drop, in its colour."""
    return Text(answer_of(verdict).word, style=STYLES[light_of(verdict)])


def verdict_table(verdicts: Iterable[RowResult], columns: int) -> Table:
    """One row per address; on a narrow screen the mail host is below the reason."""
    wide = columns >= WIDE_COLUMNS
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("address", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("why", overflow="fold", min_width=20)
    if wide:
        table.add_column("mail host", overflow="fold", min_width=12)
    table.add_column("ms", justify="right", no_wrap=True)
    for verdict in verdicts:
        why, host = Text(_why(verdict)), Text(plain(verdict.mx_host or ""), style="dim")
        reasons = [why, host] if wide else [Text("\n").join(filter(None, (why, host)))]
        table.add_row(
            Text(plain(verdict.email)),
            _word(verdict),
            Text(verdict.status),
            *reasons,
            Text(f"{verdict.latency_ms:,}"),
        )
    return table


def _why(verdict: RowResult) -> str:
    """The reason, with further remarks on the address."""
    notes = [WORDS[verdict.reason]]
    if verdict.failed_check == "syntax":
        notes = [f"{notes[0]}: {plain(_fault(verdict.email))}"]
    if verdict.suggestion:
        notes.append(f"did you mean {plain(verdict.suggestion)}?")
    if verdict.role:
        notes.append("role")
    return "; ".join(notes)


def _fault(text: str) -> str:
    """What is wrong with a text that is not an address."""
    try:
        parse(text)
    except NotAnAddress as fault:
        return str(fault)
    return ""


def explanation(verdict: RowResult, evidence: Evidence) -> Iterator[Text]:
    """The evidence for a verdict, line by line."""
    yield Text.assemble((plain(verdict.email), "bold"), "  ", _word(verdict), "  ", verdict.status)
    yield from _facts(verdict, evidence)
    if evidence.conversation:
        yield Text("  conversation")
        yield from map(_readable, evidence.conversation)
    yield Text()


def _facts(verdict: RowResult, evidence: Evidence) -> Iterator[Text]:
    facts = {
        "why": _why(verdict),
        "light": f"{light_of(verdict)}, confidence {verdict.confidence}",
        "rule": evidence.rule or "",
        "mail host": verdict.mx_host or "",
        "from cache": ", ".join(evidence.cached),
        "took": f"{verdict.latency_ms:,} ms",
    }
    for name, fact in facts.items():
        if fact:
            yield Text(f"  {name:<11} {plain(fact)}")
    for tried in evidence.exchanges:
        where = f"{tried.exchange} ({tried.address})" if tried.address else tried.exchange
        yield Text(f"  {'tried':<11} {plain(where)}: {plain(tried.result)}")


def _readable(line: ConversationLine) -> Text:
    arrow, style = (">", "cyan") if line.who == "client" else ("<", "")
    return Text(f"    {line.at_ms:8.1f} ms {arrow} {plain(line.text)}", style=style)


def summary_table(counts: ResultCounts, reasons_max: int = REASONS_MAX) -> Table:
    """The rows of a cleaned list by verdict, by status and by the most frequent reasons."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("by")
    table.add_column("")
    table.add_column("rows", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    _add_counts(table, "verdict", counts.lights.most_common(), counts.done)
    _add_counts(table, "status", counts.statuses.most_common(), counts.done)
    reasons = counts.reasons.most_common()
    if len(reasons) > reasons_max:
        others = reasons[reasons_max - 1 :]
        rows = sum(count for _, count in others)
        reasons = [*reasons[: reasons_max - 1], (f"{len(others)} others", rows)]
    _add_counts(table, "reason", reasons, counts.done)
    return table


def _add_counts(table: Table, title: str, counts: Iterable[tuple[str, int]], total: int) -> None:
    for position, (name, count) in enumerate(counts):
        table.add_row(
            "" if position else title,
            Text(VERDICTS.get(name, name), style=STYLES.get(name, "")),
            f"{count:,}",
            f"{100 * count / total:.1f} %",
            name if name in VERDICTS else WORDS.get(name, "") if title == "reason" else "",
        )


def print_summary(
    summary: Summary,
    stream: TextIO,
    *,
    reasons_max: int = REASONS_MAX,
    advise: Callable[[ResultCounts], Iterable[str]] = advice,
) -> None:
    """Print where a cleaned list is, its summary, and what to do next."""
    console = console_on(stream)
    files = [("cleaned list", path) for path in summary.outputs]
    if summary.report is not None:
        files.append(("report", summary.report))
    for name, path in files:
        console.print(f"{name}: {plain(str(path))}", overflow="fold", soft_wrap=True)
    console.print(summary_line(summary), overflow="fold")
    console.print(summary_table(summary.counts, reasons_max))
    for line in advise(summary.counts):
        console.print(line, overflow="fold", soft_wrap=True)


def summary_line(summary: Summary) -> str:
    """`300 rows (2 without an address), 287 different addresses in email; 287 answered in 12 s, 23.9/s`."""
    noted = cell_notes(summary)
    where = f" in {' and '.join(summary.columns)}" if summary.columns else ""
    rate = f", {summary.verified / summary.took_s:,.1f}/s" if summary.verified else ""
    written = (
        f"; {counted(summary.written, 'row', 'rows')} written"
        if summary.written != summary.rows
        else ""
    )
    return (
        f"{counted(summary.rows, 'row', 'rows')}{noted}, "
        f"{counted(summary.addresses, 'different address', 'different addresses')}{where}; "
        f"{summary.verified:,} answered in {duration(summary.took_s)}{rate}{written}"
    )


@contextmanager
def waiting(total: int) -> Iterator[Callable[[int], None]]:
    """On a terminal, show how many answers arrived; leaving the block removes the line."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    with console_on(sys.stderr).status(f"0 of {total} answered") as status:
        yield lambda done: status.update(f"{done} of {total} answered")
