"""The witness: what clients asked for and what was acknowledged, compared with what is stored.

Each account is used in one way, so that its sums are known: repeated requests and what is accepted
for later are counted exactly once, and a plain request whose answer was lost may be counted or not.
"""

import json
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from tests.api.service_process import Credentials


class Units(Struct, frozen=True):
    """`billable` of the units cost money."""

    units: int = 0
    billable: int = 0

    def __add__(self, other: "Units") -> "Units":
        return Units(self.units + other.units, self.billable + other.billable)

    def __le__(self, other: "Units") -> bool:
        return self.units <= other.units and self.billable <= other.billable


NONE = Units()


class Book(Struct):
    """One account's units. `is_exact`: whatever was asked for is repeated until it is acknowledged."""

    who: Credentials
    is_exact: bool
    asked: Units = NONE
    acknowledged: Units = NONE


class Stored(Struct, frozen=True):
    """What the database says of one account."""

    rows: Units  # of the usage log
    months: Units
    days_billable: int


class Final(Struct, frozen=True):
    """What the database and the receiver have at the end of a round."""

    accounts: Mapping[str, Stored]
    reserved: int  # reservations that are left
    jobs: Mapping[str, str]  # id -> state
    lists: Mapping[
        str, tuple[str, int, int]
    ]  # id -> status, addresses answered, rows of the result
    delivered: Mapping[str, Sequence[bytes]]  # job -> the bodies that came
    damage: str = "ok"  # what the database says of itself


class Witness(Struct):
    """Everything that was promised to clients."""

    books: list[Book]
    jobs: set[str] = field(default_factory=set)  # acknowledged, with a callback
    lists: dict[str, tuple[int, int]] = field(default_factory=dict)  # -> addresses, rows
    wrong: list[str] = field(default_factory=list)  # answers that no client may get
    acknowledgements: int = 0

    def acknowledge(self, book: Book, units: Units) -> None:
        book.acknowledged += units
        self.acknowledgements += 1

    def compare(self, final: Final) -> list[str]:
        """Every difference between what was promised and what there is, one line each."""
        found = list(self.wrong)
        for book in self.books:
            stored = final.accounts[book.who.account_id]
            found += _of_account(book, stored)
        if final.damage != "ok":
            found.append(f"the database is damaged: {final.damage}")
        if final.reserved:
            found.append(f"{final.reserved} reservations are left")
        for job in sorted(self.jobs):
            bodies = final.delivered.get(job, ())
            if final.jobs.get(job) != "done" or not bodies:
                found.append(f"job {job} is {final.jobs.get(job)}, with {len(bodies)} callbacks")
            elif len(set(bodies)) > 1:
                found.append(f"job {job} was posted with different bodies")
            elif json.loads(bodies[0]).get("job_id") != job:
                found.append(f"job {job} was posted as another one")
        for id, (addresses, rows) in sorted(self.lists.items()):
            there = final.lists.get(id)
            if there != ("done", addresses, rows):
                found.append(f"list {id} is {there}, of {addresses} addresses and {rows} rows")
        return found


def _of_account(book: Book, stored: Stored) -> list[str]:
    found = []
    if stored.months != stored.rows:
        found.append(f"rows and months differ: {stored.rows} and {stored.months}")
    if stored.days_billable != stored.rows.billable:
        found.append(f"rows and days differ: {stored.rows} and {stored.days_billable} billable")
    if not book.acknowledged <= stored.rows:
        found.append(f"units were lost: {stored.rows} of {book.acknowledged} acknowledged")
    if not stored.rows <= book.asked:
        found.append(f"units were counted twice: {stored.rows} of {book.asked} asked for")
    if book.is_exact and not stored.rows == book.asked == book.acknowledged:
        found.append(
            f"units differ: {stored.rows} stored, {book.asked} asked, {book.acknowledged} acknowledged"
        )
    return [f"account {book.who.account_id}: {each}" for each in found]
