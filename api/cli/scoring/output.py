"""Prints a score as tables for a person, or as JSON."""

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mailprobe.api.bounces.kinds import KINDS
from mailprobe.api.cli.scoring.bounces import Bounces, as_counts, lines_of
from mailprobe.api.cli.scoring.scores import Group, Score
from mailprobe.api.terminal import plain

PROVIDERS_MAX = 15  # shown
HEADINGS = (
    *("sent", "no mailbox", "refused", "later", "unknown", "without a mailbox", "95 % between"),
)


def print_score(console: Console, score: Score, bounces: Bounces) -> None:
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
    for note in notes(score, bounces):
        console.print(Text(f"- {note}"), soft_wrap=True)


def _largest(groups: Mapping[str, Group], limit: int | None) -> dict[str, Group]:
    return dict(sorted(groups.items(), key=lambda entry: (-entry[1].sent, entry[0]))[:limit])


def _table(by: str, groups: Mapping[str, Group]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
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
            f"{low:.2%} and {high:.2%}",
        )
    return table


def notes(score: Score, bounces: Bounces) -> list[str]:
    """What the tables do not show."""
    found = {
        "rows of other lights are not compared: no mail was sent to them (--sent)": score.not_sent,
        "of them bounced, so mail was sent to them after all": score.bounced_not_sent,
        "bounced addresses are not in the list": score.foreign,
        "bounces give no reason that is understood; their mailboxes may or may not exist": (
            score.all.bounced["unknown"]
        ),
        "messages report no bounce that could be read": bounces.unread - bounces.others,
        "messages are no bounces, and are not counted": bounces.others,
    }
    taken = [f"of the rows of the bounces, {line}" for line in lines_of(bounces)]
    return [*taken, *(f"{count:,} {words}" for words, count in found.items() if count)]


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
        "not_in_list": score.foreign,
        **as_counts(bounces),
        "unread_messages": bounces.unread - bounces.others,
        "other_messages": bounces.others,
    }


def _entry(group: Group) -> dict[str, object]:
    low, high = group.interval()
    kinds: dict[str, int] = {kind: group.bounced[kind] for kind in KINDS}
    return {"sent": group.sent, **kinds, "low": round(low, 6), "high": round(high, 6)}
