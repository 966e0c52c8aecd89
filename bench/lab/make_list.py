"""Makes examples/list.csv: 300 rows over the fixture domains, like a firm's list of contacts.

    python -m mailprobe.bench.lab.make_list [FILE]

The same seed gives the same file, octet for octet; a test keeps the two together.
"""

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from io import StringIO
from itertools import chain, islice, zip_longest
from pathlib import Path
from random import Random

from mailprobe.engine.verdict import Outcome

from . import fixture_domains
from .fixture_domains import Firm, FixturePerson
from .scenarios import HUB_KIND, KINDS

COLUMNS = ("name", "email", "company", "city", "signed_up")
LIST = Path(__file__).parents[3] / "examples" / "list.csv"
SEED = 2024
FIRST_DAY, DAYS = date(2023, 1, 2), 720

Row = tuple[str, str, str, str, str]
KnownPeople = tuple[Firm, FixturePerson]

# how many rows turn out how: 300 with 6 duplicates and 2 without an address
SHARES: dict[Outcome, int] = {
    Outcome.DELIVERABLE: 172,
    Outcome.UNDELIVERABLE: 31,
    Outcome.CATCH_ALL: 18,
    Outcome.SMTP_BLOCKED: 14,
    Outcome.SYNTAX: 12,
    Outcome.DISPOSABLE: 8,
    Outcome.NO_MX: 8,
    Outcome.TEMPORARY: 5,
    Outcome.REFUSED_BY_POLICY: 5,
    Outcome.MAILBOX_FULL: 4,
    Outcome.DELIVERABLE_UNTESTED: 4,
    Outcome.CONVERSATION_FAILED: 4,
    Outcome.TIMED_OUT: 3,  # each costs its second or three
    Outcome.NEEDS_SMTPUTF8: 2,
    Outcome.RESOLVER_FAILED: 2,
}
DUPLICATES = 6
BLANKS = 2
KINDS_LEFT_OUT = frozenset({"unanswered"})  # tries its exchange until the clock has run out
NOBODY = Firm("", "", "", "")


def make() -> str:
    """The whole file."""
    rng = Random(SEED)
    rows = [row for outcome, share in SHARES.items() for row in _rows(rng, outcome, share)]
    rng.shuffle(rows)
    for _ in range(DUPLICATES):
        row = rng.choice([row for row in rows if row[1].endswith(".test")])
        rows.insert(rng.randrange(len(rows)), _again(rng, row))
    for place in range(BLANKS):
        row = rng.choice(rows)
        rows.insert(
            rng.randrange(len(rows)), (row[0], "", row[2], "", row[4]) if place else ("",) * 5
        )
    out = StringIO()
    csv.writer(out, lineterminator="\n").writerows([COLUMNS, *rows])
    return out.getvalue()


def _rows(rng: Random, outcome: Outcome, share: int) -> list[Row]:
    """So many rows of this outcome, over as many firms as there are."""
    known = list(islice(_candidates(outcome), share))
    if len(known) < share:
        raise ValueError(
            f"the scenario has {len(known)} addresses for {outcome.value}, not {share}"
        )
    return [_row(rng, firm, person) for firm, person in known]


def _candidates(outcome: Outcome) -> Iterable[KnownPeople]:
    """Everybody whose address turns out so, one of each firm before the second of any."""
    if outcome is Outcome.SYNTAX:
        return [
            (NOBODY, FixturePerson(_name_in(text), text)) for text in fixture_domains.NOT_ADDRESSES
        ]
    who = PEOPLE.get(outcome, fixture_domains.staff)
    firms = [
        [(firm, person) for person in who(firm)]
        for firm in fixture_domains.FIRMS
        if _is(firm, outcome)
    ]
    by_turns = chain.from_iterable(zip_longest(*firms))
    return [known for known in by_turns if known is not None]


def _is(firm: Firm, outcome: Outcome) -> bool:
    if firm.kind in KINDS_LEFT_OUT:
        return False
    if outcome is Outcome.SMTP_BLOCKED:
        return firm.kind.startswith("provider ")
    if outcome is Outcome.NEEDS_SMTPUTF8:
        return firm.kind == "no smtputf8"
    kind = KINDS.get(firm.kind)
    if outcome is Outcome.UNDELIVERABLE:
        return firm.kind == HUB_KIND or (kind is not None and kind.reports_leavers)
    if outcome is Outcome.DELIVERABLE and firm.kind in (HUB_KIND, "no smtputf8"):
        return True
    return kind is not None and kind.outcome is outcome


def _deliverable(firm: Firm) -> Sequence[FixturePerson]:
    """The staff, then the office."""
    return (*fixture_domains.staff(firm), *fixture_domains.offices(firm)[:1])


def _international(firm: Firm) -> Sequence[FixturePerson]:
    return [
        FixturePerson(local.title(), f"{local}@{firm.domain}")
        for local in fixture_domains.INTERNATIONAL
    ]


PEOPLE: dict[Outcome, Callable[[Firm], Sequence[FixturePerson]]] = {
    Outcome.DELIVERABLE: _deliverable,
    Outcome.UNDELIVERABLE: fixture_domains.leavers,
    Outcome.NEEDS_SMTPUTF8: _international,
}


def _row(rng: Random, firm: Firm, person: FixturePerson) -> Row:
    """As people type: names in capitals or missing, days missing."""
    name = person.name
    chance = rng.random()
    if chance < 0.04:
        name = name.upper()
    elif chance < 0.08:
        name = ""
    elif chance < 0.16 and " " in name:
        name = ", ".join(reversed(name.split(" ", 1)))
    company = "" if rng.random() < 0.05 else firm.company
    day = FIRST_DAY + timedelta(days=rng.randrange(DAYS))
    signed_up = "" if rng.random() < 0.04 else day.isoformat()
    return (name, person.address, company, firm.city, signed_up)


def _again(rng: Random, row: Row) -> Row:
    """The same address once more, as it comes from another form."""
    local, _, domain = row[1].rpartition("@")
    email = rng.choice([row[1], f"{local}@{domain.upper()}", f"{local}@{domain.capitalize()}"])
    return (row[0], email, row[2], row[3], "")


def _name_in(text: str) -> str:
    return text.partition("@")[0].replace(".", " ").strip().title()[:20]


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else LIST
    target.write_text(make(), encoding="utf-8", newline="")
    print(f"{target}: written", file=sys.stderr)
