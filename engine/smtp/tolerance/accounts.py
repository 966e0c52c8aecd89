"""The accounts that ask one mail host: what is refused to each, and what of its lists waits. Pure."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from .limits import HOUR_S, WINDOW_S, Kind

ACCOUNTS_MAX = 256  # accounts remembered at one host
SURE_SHARE = 4  # an account whose addresses live here: accepted this many times its refused
WAITING_S = 2 * WINDOW_S  # after a row was turned away, those that wait still count
ROWS_MAX = (
    65_536  # remembered of an account's lists: no host takes the refusals of so many in hours
)


@dataclass(slots=True)
class AccountHere:
    """One account at the host, within the hour."""

    last_at: float
    accepted: int = 0
    refused: int = 0
    recent: int = 0  # refused within the window
    under_way: int = 0
    # Of its lists, turned away and not sent since. Rows come back several times, and not together:
    # so they are kept by their mailboxes.
    rows: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)  # the domains of random names, due or to come
    turned_at: float = -inf
    waiting_since: float = -inf  # the aim of its lists counts from then

    @property
    def lives_here(self) -> bool:
        return not self.refused or self.accepted >= SURE_SHARE * self.refused

    def is_waiting(self, now: float, within_s: float = WAITING_S) -> bool:
        return now - self.turned_at < within_s

    def turn_away(self, now: float, row: str, untested: str) -> None:
        """See Tolerance.turned_away()."""
        if not self.is_waiting(now):
            self.waiting_since = now
        if not self.is_waiting(now, HOUR_S + WINDOW_S):  # they have gone
            self.rows.clear()
            self.names.clear()
        self.turned_at = now
        if row and len(self.rows) < ROWS_MAX:
            self.rows.add(row)
        if untested:
            self.names.add(untested)

    def send(self, kind: Kind, mailbox: str) -> None:
        """A listed recipient is sent, which may have waited."""
        if kind is Kind.LIST:
            self.rows.discard(mailbox)
        self.under_way += 1

    def recall(self) -> None:
        """A listed recipient gets no answer."""
        self.under_way = max(0, self.under_way - 1)

    def answer(self, *, accepted: bool, refused: bool) -> None:
        """A listed recipient was answered."""
        self.under_way = max(0, self.under_way - 1)
        self.accepted += accepted
        self.refused += refused

    def count_recent(self, more: int) -> None:
        """So many more refusals are within the window."""
        self.recent = max(0, self.recent + more)

    def withdraw_refusal(self) -> None:
        """The latest refusal of a listed recipient was none."""
        self.refused = max(0, self.refused - 1)


class AccountsHere(OrderedDict[str, AccountHere]):
    """The latest accounts of one host, the one that asked last at the end."""

    def meet(self, account: str, now: float, refused: Iterable[tuple[float, str]]) -> AccountHere:
        """This account asks, or is refused; `refused` are the refusals within the window."""
        here = self.get(account)
        if here is None:
            here = self[account] = AccountHere(now)
            here.recent = sum(each == account for _, each in refused)
            if len(self) > ACCOUNTS_MAX:
                self.popitem(last=False)
            return here
        self.move_to_end(account)
        if now - here.last_at >= HOUR_S:
            here.accepted = here.refused = 0
        here.last_at = now
        return here

    def recount(self, recent: Mapping[str, int], latest: Mapping[str, float]) -> None:
        """Refusals within the window by account, and when each was refused elsewhere last."""
        for account, here in self.items():
            here.recent = recent.get(account, 0)
            here.last_at = max(here.last_at, latest.get(account, here.last_at))

    def is_alone(self, account: str, now: float) -> bool:
        """Has no other account asked here within the hour?"""
        for name in reversed(self):
            if name != account:
                return now - self[name].last_at >= HOUR_S
        return True

    def name_sent(self, mailbox: str) -> None:
        """A random name is sent: no account waits for that of its domain any more."""
        domain = mailbox.rpartition("@")[2]
        for here in self.values():
            here.names.discard(domain)

    def rows_waiting(self, now: float, within_s: float = WAITING_S) -> int:
        """The rows of lists that wait."""
        return sum(len(here.rows) for here in self.values() if here.is_waiting(now, within_s))

    def refusals_waiting(self, now: float, share: float) -> float:
        """What they are expected to cost, with their random names, if this share is refused."""
        names = set().union(*(here.names for here in self.values() if here.is_waiting(now)))
        return max(1, self.rows_waiting(now)) * share + len(names)
