"""The accounts that ask one mail host: what they were answered, and what of their lists waits. Pure."""

from collections import OrderedDict
from math import inf

from msgspec import Struct, field

from .limits import HOUR_S, WINDOW_S, Kind

ACCOUNTS_MAX = 256  # accounts remembered at one host
SURE_SHARE = 4  # an account whose addresses live here: accepted this many times its refused
WAITING_S = 2 * WINDOW_S  # waiting rows count until so long after one was turned away
FORGOTTEN_S = HOUR_S + WINDOW_S  # then they are assumed to be gone
ROWS_MAX = 500_000  # remembered of all hosts: some 70 octets each


class WaitingRows(Struct, eq=False):
    """The rows of one account that wait at one host, turned away and not sent since.

    Rows come back several times, and not together: so they are kept by their mailboxes, as hashes.
    """

    _hosts: "WaitingHosts"
    _rows: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)  # the domains of random names, due or to come
    turned_at: float = -inf  # the latest,
    _since: float = -inf  # and the first, from which the lists' aim counts

    def add(self, now: float, row: str, untested: str) -> None:
        """A row was turned away; `untested`: its domain, if that costs a random name."""
        if not self.is_waiting(now):
            self._since = now
        if not self.is_waiting(now, FORGOTTEN_S):
            self.forget()
        self.turned_at = now
        before = len(self._rows)
        if row:
            self._rows.add(hash(row))
        if untested:
            self.names.add(untested)
        self._hosts.turned_away(self, len(self._rows) - before)

    def sent(self, row: str) -> None:
        """A row was sent, so it does not wait any more."""
        if self._rows and (number := hash(row)) in self._rows:
            self._rows.remove(number)
            self._hosts.forgotten(1)

    def forget(self) -> None:
        self._hosts.forgotten(len(self._rows))
        self._rows.clear()
        self.names.clear()

    def is_waiting(self, now: float, within_s: float = WAITING_S) -> bool:
        return now - self.turned_at < within_s

    def waited_s(self, now: float) -> float:
        return now - self._since if self.is_waiting(now) else 0.0

    def count(self, now: float, within_s: float = WAITING_S) -> int:
        """How many rows wait."""
        return len(self._rows) if self.is_waiting(now, within_s) else 0


class WaitingHosts(Struct, eq=False):
    """The waiting rows of all mail hosts of an egress. Bounded: the oldest are forgotten."""

    _count: int = 0
    _latest: OrderedDict[WaitingRows, None] = field(default_factory=OrderedDict)

    def forgotten(self, rows: int) -> None:
        self._count -= rows

    def turned_away(self, rows: WaitingRows, more: int) -> None:
        """`rows` got so many more by a row that was turned away."""
        self._count += more
        self._latest[rows] = None
        self._latest.move_to_end(rows)
        while (
            not (first := next(iter(self._latest), rows)).is_waiting(rows.turned_at, FORGOTTEN_S)
            or self._count > ROWS_MAX
        ):
            first.forget()
            del self._latest[first]


class AccountHere(Struct):
    """One account at the host, within the hour."""

    last_at: float
    waiting: WaitingRows
    accepted: int = 0
    refused: int = 0
    under_way: int = 0

    @property
    def lives_here(self) -> bool:
        return not self.refused or self.accepted >= SURE_SHARE * self.refused

    def send(self, kind: Kind, mailbox: str) -> None:
        """A listed recipient is sent, which may have waited."""
        if kind is Kind.LIST:
            self.waiting.sent(mailbox)
        self.under_way += 1

    def recall(self) -> None:
        """A listed recipient gets no answer."""
        self.under_way = max(0, self.under_way - 1)

    def answer(self, *, accepted: bool, refused: bool) -> None:
        """A listed recipient was answered."""
        self.under_way = max(0, self.under_way - 1)
        self.accepted += accepted
        self.refused += refused

    def withdraw_refusal(self) -> None:
        """The latest refusal of a listed recipient was not the recipient's own."""
        self.refused = max(0, self.refused - 1)


class AccountsHere(OrderedDict[str, AccountHere]):
    """The latest accounts of one host, the one that asked last at the end."""

    def __init__(self, waiting: WaitingHosts) -> None:
        super().__init__()
        self._waiting = waiting

    def meet(self, account: str, now: float) -> AccountHere:
        """This account asks, or is answered."""
        here = self.get(account)
        if here is None:
            here = self[account] = AccountHere(now, WaitingRows(self._waiting))
            if len(self) > ACCOUNTS_MAX:
                self.popitem(last=False)
            return here
        self.move_to_end(account)
        if now - here.last_at >= HOUR_S:
            here.accepted = here.refused = 0
        here.last_at = now
        return here

    def seen_elsewhere(self, account: str, at: float) -> None:
        """Another process got a refusal for this account."""
        here = self.get(account) or self.meet(account, at)
        here.last_at = max(here.last_at, at)

    def is_alone(self, account: str, now: float) -> bool:
        """Has no other account asked here within the hour?"""
        for name in reversed(self):
            if name != account:
                return now - self[name].last_at >= HOUR_S
        return True

    def may_hurry(self, account: str, now: float) -> bool:
        """Has it at least half as many accepted as refused recipients, or is it alone?"""
        here = self.get(account)
        return here is None or 2 * here.accepted >= here.refused or self.is_alone(account, now)

    # -- lists that wait -----------------------------------------------------------------------

    def name_sent(self, mailbox: str) -> None:
        """A random name is sent, so no account waits for its domain's any more."""
        domain = mailbox.rpartition("@")[2]
        for here in self.values():
            here.waiting.names.discard(domain)

    def rows_waiting(self, now: float, within_s: float = WAITING_S) -> int:
        """The rows of lists that wait."""
        return sum(each.waiting.count(now, within_s) for each in self.values())

    def refusals_waiting(self, now: float, share: float) -> float:
        """Expected refusals of the waiting rows and their random names, if this share is refused."""
        waiting = (here.waiting for here in self.values())
        names = set().union(*(each.names for each in waiting if each.is_waiting(now)))
        return max(1, self.rows_waiting(now)) * share + len(names)
