"""Prints a score for a person, on one screen or with all its tables, or as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...bounces.kinds import KINDS
from ...terminal import plain
from ..output.summary import counted
from .bounces import (
    NAMES,
    Bounces,
    Taken,
    as_counts,
    lines_of,
    nothing_taken,
)
from .scores import Group, Score

PROVIDERS_MAX = 15  # shown
STATUSES_MAX = 8  # more than `clean` writes; a foreign file may have any
DOMAINS_NAMED = 3
SCREEN_LINES = 24
SCREEN_COLUMNS = 80
HEADINGS = ("sent", "no mailbox", "refused", "later", "unknown", "share", "95 %")


def print_score(console: Console, score: Score, bounces: Bounces, *, is_whole: bool) -> None:
    """Print the score on one screen, or the whole of it: by reason, provider and domain, too."""
    headline = wrap(result(score.all.gone, score.all.sent, score.all.interval()), SCREEN_COLUMNS)
    for line in headline:
        console.print(Text(line))
    console.print()
    if is_whole:
        _print_tables(console, score)
        taken = [f"of the rows of the bounces, {line}" for line in lines_of(bounces)]
        for note in (*taken, *notes(score, bounces)):
            console.print(Text(f"- {note}"), soft_wrap=True)
        return
    statuses = {**_largest(score.groups["status"], STATUSES_MAX), "all": score.all}
    console.print(_table("status", statuses))
    console.print()
    remarks = [
        *nothing_taken(bounces),
        *domains(score.worst_domains()),
        *notes(score, bounces),
        *row_counts(bounces.rows),
    ]
    lines_used = len(headline) + len(statuses) + 4  # the table's head, and two empty lines
    for line in fitting(remarks, SCREEN_LINES - lines_used - 1):
        console.print(Text(line), soft_wrap=True)
    console.print("by reason, provider and domain: --verbose; for programs: --json")


def result(gone: int, sent: int, interval: tuple[float, float]) -> str:
    """The score in one sentence."""
    if not sent:
        return "Mail was sent to no address of the list."
    low, high = interval
    addresses = counted(sent, "address", "addresses")
    return (
        f"Without a mailbox: {gone:,} of {addresses} that mail was sent to, {gone / sent:.2%}; "
        f"the true share is between {low:.2%} and {high:.2%} (95 %)."
    )


def domains(worst: Sequence[tuple[str, Group]]) -> list[str]:
    """The worst domains in one line; none without any."""
    if not worst:
        return []
    named = ", ".join(f"{plain(name)} ({group.gone:,})" for name, group in worst[:DOMAINS_NAMED])
    more = f" and {len(worst) - DOMAINS_NAMED} more" if len(worst) > DOMAINS_NAMED else ""
    return [f"hosts accepted addresses that bounced at {named}{more}"]


def row_counts(rows: Mapping[Taken, int]) -> list[str]:
    """What the rows of the bounces were taken as, in one line."""
    counts = [f"{rows[taken]:,} {words}" for taken, words in NAMES.items() if rows.get(taken)]
    return [f"rows of the bounces: {', '.join(counts)}"] if counts else []


def fitting(remarks: Sequence[str], lines_max: int) -> Iterator[str]:
    """The first remarks that fit whole, wrapped, into `lines_max` lines."""
    left = lines_max
    for remark in remarks:
        lines = wrap(f"- {remark}", SCREEN_COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
        if len(lines) > left:
            return
        left -= len(lines)
        yield from lines


def _print_tables(console: Console, score: Score) -> None:
    for by in ("status", "reason", "provider"):
        limit = PROVIDERS_MAX if by == "provider" else None
        console.print(_table(by, _largest(score.groups[by], limit)))
        console.print()
    worst = dict(score.worst_domains())
    if worst:
        console.print("Domains whose mail hosts accepted an address that bounced:")
        console.print(_table("domain", worst))
        console.print()
    console.print(_table("", {"all": score.all}))


def _largest(groups: Mapping[str, Group], limit: int | None) -> dict[str, Group]:
    return dict(sorted(groups.items(), key=lambda entry: (-entry[1].sent, entry[0]))[:limit])


def _table(by: str, groups: Mapping[str, Group]) -> Table:
    """A table of at most 80 columns, but for long names."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.add_column(f"called {by}" if by in ("status", "reason") else by, overflow="fold")
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, group in groups.items():
        low, high = group.interval()
        table.add_row(
            Text(plain(name)),
            f"{group.sent:,}",
            *(f"{group.bounced[kind]:,}" for kind in KINDS),
            f"{group.gone / group.sent:.2%}" if group.sent else "-",
            f"{100 * low:.1f}-{100 * high:.1f} %",
        )
    return table


def notes(score: Score, bounces: Bounces) -> list[str]:
    """What the tables do not show, the gravest first."""
    found = (
        (
            score.foreign,
            "bounced address is not in the list",
            "bounced addresses are not in the list",
        ),
        (
            score.not_sent,
            "row of other lights is not compared: no mail was sent to it (--sent)",
            "rows of other lights are not compared: no mail was sent to them (--sent)",
        ),
        (
            score.bounced_not_sent,
            "of them bounced, so mail was sent to it after all",
            "of them bounced, so mail was sent to them after all",
        ),
        (
            score.bounced_before,
            "bounce is older than the cleaned list, whose row has the reason bounced; only "
            "bounces of a later mailing say how right it was",
            "bounces are older than the cleaned list, whose rows have the reason bounced; only "
            "bounces of a later mailing say how right it was",
        ),
        (
            score.all.bounced["unknown"],
            "bounce gives no reason that is understood; its mailbox may or may not exist",
            "bounces give no reason that is understood; their mailboxes may or may not exist",
        ),
        (
            bounces.unread - bounces.others,
            "message reports no bounce that could be read",
            "messages report no bounce that could be read",
        ),
        (
            bounces.others,
            "message is not a bounce, and is not counted",
            "messages are not bounces, and are not counted",
        ),
    )
    return [counted(count, one, more) for count, one, more in found if count]


def as_json(score: Score, bounces: Bounces) -> dict[str, object]:
    return {
        "all": _entry(score.all),
        **{
            by: {name: _entry(group) for name, group in groups.items()}
            for by, groups in score.groups.items()
        },
        "domains": {name: _entry(group) for name, group in score.worst_domains()},
        "not_sent": score.not_sent,
        "bounced_not_sent": score.bounced_not_sent,
        "bounced_before": score.bounced_before,
        "not_in_list": score.foreign,
        **as_counts(bounces),
        "unread_messages": bounces.unread - bounces.others,
        "other_messages": bounces.others,
    }


def _entry(group: Group) -> dict[str, object]:
    low, high = group.interval()
    kinds: dict[str, int] = {kind: group.bounced[kind] for kind in KINDS}
    return {"sent": group.sent, **kinds, "low": round(low, 6), "high": round(high, 6)}
