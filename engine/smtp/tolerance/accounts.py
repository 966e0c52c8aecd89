"""The accounts that ask one mail host: what is refused to each, and what of its lists waits. Pure."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from .limits import HOUR_S, WINDOW_S, Kind

ACCOUNTS_MAX = 256  # accounts remembered at one host
SURE_SHARE = 4  # an account whose addresses live here: accepted this many times its refused
ROUND_S = 0.5  # between two rows of one round, in which an account's rows are turned away
WAITING_S = 2 * WINDOW_S  # after a round, its rows still count


@dataclass(slots=True)
class AccountHere:
    """One account at the host, within the hour."""

    last_at: float
    accepted: int = 0
    refused: int = 0
    recent: int = 0  # refused within the window
    under_way: int = 0
    # Of its lists, turned away in the latest round (see turn_away()) and not sent since:
    rows_waiting: int = 0
    names_to_come: int = 0  # random names that these rows will cost, one for each untested domain
    domains_waiting: set[str] = field(default_factory=set)
    names_waiting: int = 0  # random names that were turned away themselves
    turned_at: float = -inf  # a row, at the latest,
    named_at: float = -inf  # and a name
    waiting_since: float = -inf  # the aim of its lists counts from then

    @property
    def lives_here(self) -> bool:
        return not self.refused or self.accepted >= SURE_SHARE * self.refused

    def is_waiting(self, now: float, within_s: float = WAITING_S) -> bool:
        return now - max(self.turned_at, self.named_at) < within_s

    def turn_away(self, kind: Kind, now: float, untested: str) -> None:
        """See Tolerance.turned_away().

        Rows of an account are turned away together, and again each time that they come back: only
        the latest round is counted, for the same rows would count twice; so are names.
        """
        if not self.is_waiting(now):
            self.waiting_since = now
        if kind is Kind.NAME:
            if now - self.named_at > ROUND_S:
                self.names_waiting = 0
            self.named_at = now
            self.names_waiting += 1
            return
        if now - self.turned_at > ROUND_S:
            self.rows_waiting = self.names_to_come = 0
            self.domains_waiting.clear()
        self.turned_at = now
        self.rows_waiting += 1
        if untested and untested not in self.domains_waiting:
            self.domains_waiting.add(untested)
            self.names_to_come += 1

    def send(self, kind: Kind) -> None:
        """A recipient is sent, which may have waited."""
        if kind is Kind.NAME and self.names_waiting:
            self.names_waiting -= 1
        elif kind is Kind.NAME:
            self.names_to_come = max(0, self.names_to_come - 1)
        elif kind is Kind.LIST:
            self.rows_waiting = max(0, self.rows_waiting - 1)
        self.under_way += not kind.is_name

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

    def waiting(self, now: float, within_s: float = WAITING_S) -> tuple[int, int]:
        """The rows of lists that wait, and the random names that they will cost."""
        waiting = [here for here in self.values() if here.is_waiting(now, within_s)]
        return (
            sum(here.rows_waiting for here in waiting),
            sum(here.names_waiting + here.names_to_come for here in waiting),
        )
