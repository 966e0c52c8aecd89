"""Decides which query is sent to a resolver next: fair by account, and late queries give way.

A resolver answers a limited number of queries at a time (`capacity`). A query whose
name server hangs occupies one of these slots until its deadline, and any account can
send such names. So the queue keeps these rules:

- Accounts take turns. Of those whose turn is near, the one with the fewest queries
  under way goes first. Within an account, layer 4's look-ups go before requests, and
  requests before lists, which can wait.
- A query is late after LATE_S without an answer. Where others wait and no slot is
  free, late queries give way: first those of a zone with more than ZONE_LATE_MAX of
  them, then those of the account with the most slots, then those of the waiting account
  itself, as far as they hold more than a quarter of its slots.
- A query that gave way waits again, behind all that were never sent. The resolver has
  often found the answer by then.
- A resolver that limits us is sent no more than its pace allows (pacing.py).

So an account waits for others no longer than LATE_S, whatever they look up. Pure: no
socket, no clock; the caller passes the time.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict
from enum import IntEnum

from mailprobe.engine.dns.pacing import QueryPace

LATE_S = 0.3  # a cached answer takes 20 ms, one that must be found about 100
ZONE_LATE_MAX = 8  # more of one zone show that its name servers hang
LATE_SHARE = 4  # late queries may hold a quarter of an account's slots while its other queries wait
ACCOUNTS_COMPARED = 16  # at each turn: bounds the work
REVIEW_S = 0.02  # between two searches for late queries while some wait


class Priority(IntEnum):
    """What needs the answer; a smaller number goes first within an account."""

    PROBE = 0  # layer 4's deadline is running
    REQUEST = 1  # layer 3's deadline is running
    LIST = 2  # its deadline starts with the first query
    AGAIN = 3  # it gave way before


class Query(ABC):
    """A query to one resolver, wanted by one account or more.

    `wanted_by` is shared with the caller; the queue reads it when the query has to wait.
    """

    __slots__ = ("account", "name", "preempted", "sent_at", "wanted_by")

    def __init__(self, name: str, wanted_by: dict[str, Priority]) -> None:
        self.name = name
        self.wanted_by = wanted_by
        self.account = ""  # the account whose turn it used
        self.sent_at: float | None = None  # None while it waits
        self.preempted = False

    @abstractmethod
    def send(self, now: float) -> None:
        """Its turn has come: send it. It may be answered, and released, at once."""

    @abstractmethod
    def preempt(self) -> None:
        """It gives way: cancel what was sent. It waits again."""


class _AccountQueue:
    """The waiting queries of one account."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: tuple[OrderedDict[Query, None], ...] = tuple(OrderedDict() for _ in Priority)

    def __bool__(self) -> bool:
        return any(self._waiting)

    def add(self, query: Query, priority: Priority) -> None:
        self.discard(query)
        self._waiting[priority][query] = None

    def discard(self, query: Query) -> None:
        for waiting in self._waiting:
            waiting.pop(query, None)

    def first(self) -> Query:
        return next(iter(next(filter(None, self._waiting))))


class QueryQueue:
    """The queries to one resolver: those under way, and those that wait for a slot."""

    def __init__(self, capacity: int, pace: QueryPace | None = None) -> None:
        self.capacity = capacity
        self._pace = pace or QueryPace()
        self._sent: dict[Query, None] = {}  # the oldest first
        self._unwanted: dict[Query, None] = {}  # of those: their answers are not needed
        self.slots: dict[str, int] = {}  # queries under way, by account
        # In the order of their turns.
        self._by_account: OrderedDict[str, _AccountQueue] = OrderedDict()
        self._advancing = False

    @property
    def waiting(self) -> bool:
        return bool(self._by_account)

    @property
    def under_way(self) -> int:
        return len(self._sent)

    def submit(self, query: Query, now: float) -> None:
        """Send the query now if a slot is free, else when its turn comes."""
        if not self._by_account and len(self._sent) < self.capacity and self._pace.ready(now):
            self._send(query, next(iter(query.wanted_by)), now)
            return
        self._wait(query)
        self.advance(now)

    def claim(self, query: Query, account: str, priority: Priority) -> None:
        """Another account wants it too: the earlier of their turns counts."""
        if query.sent_at is None:
            self._join(query, account, priority)

    def release(self, query: Query) -> None:
        """The query is answered or cancelled: free its slot, or stop waiting.

        The caller calls `advance` after its last release.
        """
        if query in self._sent:
            del self._sent[query]
            self._unwanted.pop(query, None)
            self._uncount(query)
        else:
            for account in query.wanted_by:
                self.withdraw(query, account)

    def withdraw(self, query: Query, account: str) -> None:
        """The account no longer waits for it."""
        queue = self._by_account.get(account)
        if queue is not None:
            queue.discard(query)
            if not queue:
                del self._by_account[account]

    def set_unwanted(self, query: Query) -> None:
        """Its answer is no longer needed: it gives way as soon as another one waits."""
        if query in self._sent:
            self._unwanted[query] = None

    def advance(self, now: float) -> None:
        """Send waiting queries while slots are free."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while (
                self._by_account
                and self._pace.ready(now)
                and (len(self._sent) < self.capacity or self._drop_unwanted())
            ):
                account = self._next_account()
                self._send_first(account, now)
        finally:
            self._advancing = False

    def review(self, now: float) -> None:
        """Preempt late queries for those that wait, by the rules above."""
        self.advance(now)
        if not self._by_account or self._advancing or not self._pace.ready(now):
            return
        self._advancing = True
        try:
            late = _Late(self._sent, now)
            for account in self._accounts_by_slots():
                while (queue := self._by_account.get(account)) is not None and self._pace.ready(
                    now
                ):
                    victim = late.victim(queue.first(), account, self.slots)
                    if victim is None:
                        break
                    self._preempt(victim)
                    self._send_first(account, now)
        finally:
            self._advancing = False
        self.advance(now)  # some may have been answered at once

    # -- sending and recalling ---------------------------------------------------------------

    def _send_first(self, account: str, now: float) -> None:
        query = self._by_account[account].first()
        for each in (account, *query.wanted_by):
            self.withdraw(query, each)
        if account in self._by_account:
            self._by_account.move_to_end(account)
        self._send(query, account, now)

    def _send(self, query: Query, account: str, now: float) -> None:
        self._pace.spend()
        query.account = account
        query.sent_at = now
        self._sent[query] = None
        self.slots[account] = self.slots.get(account, 0) + 1
        query.send(now)

    def _preempt(self, query: Query) -> None:
        del self._sent[query]
        self._uncount(query)
        query.sent_at = None
        query.preempted = True
        query.preempt()
        self._wait(query)

    def _drop_unwanted(self) -> bool:
        if not self._unwanted:
            return False
        query = next(iter(self._unwanted))
        del self._unwanted[query]
        del self._sent[query]
        self._uncount(query)
        query.sent_at = None
        query.preempt()
        return True

    def _uncount(self, query: Query) -> None:
        left = self.slots.pop(query.account) - 1
        if left:
            self.slots[query.account] = left

    # -- waiting -----------------------------------------------------------------------------

    def _wait(self, query: Query) -> None:
        for account, priority in query.wanted_by.items():
            self._join(query, account, priority)

    def _join(self, query: Query, account: str, priority: Priority) -> None:
        queue = self._by_account.get(account)
        if queue is None:
            queue = self._by_account[account] = _AccountQueue()
        queue.add(query, Priority.AGAIN if query.preempted else priority)

    def _next_account(self) -> str:
        """Of the accounts whose turn is near, the one with the fewest slots."""
        best, fewest = "", -1
        for number, account in enumerate(self._by_account):
            places = self.slots.get(account, 0)
            if fewest < 0 or places < fewest:
                best, fewest = account, places
            if not fewest or number >= ACCOUNTS_COMPARED:
                break
        return best

    def _accounts_by_slots(self) -> list[str]:
        near = [
            account for account, _ in zip(self._by_account, range(ACCOUNTS_COMPARED), strict=False)
        ]
        return sorted(near, key=lambda account: self.slots.get(account, 0))


class _Late:
    """The late queries at one instant, and which of them gives way."""

    def __init__(self, sent: dict[Query, None], now: float) -> None:
        self._queries: dict[Query, None] = {}
        self._by_zone: defaultdict[str, dict[Query, None]] = defaultdict(dict)
        self._by_account: defaultdict[str, dict[Query, None]] = defaultdict(dict)
        for query in sent:
            assert query.sent_at is not None
            if now < query.sent_at + LATE_S:
                break
            self._queries[query] = None
            self._by_zone[zone_of(query.name)][query] = None
            self._by_account[query.account][query] = None

    def victim(self, waiting: Query, account: str, places: dict[str, int]) -> Query | None:
        """Choose the late query that gives way to this one, or None. It is no longer counted as late."""
        if not self._queries:
            return None
        own = places.get(account, 0)
        found = (
            self._of_a_hung_zone(waiting)
            or self._of_the_heaviest(own, places)
            or self._of_its_own(waiting, account, own)
        )
        if found is not None:
            for group in (
                self._queries,
                self._by_zone[zone_of(found.name)],
                self._by_account[found.account],
            ):
                del group[found]
        return found

    def _of_a_hung_zone(self, waiting: Query) -> Query | None:
        own = zone_of(waiting.name)
        for zone, queries in self._by_zone.items():
            if len(queries) > ZONE_LATE_MAX and zone != own:
                return next(iter(queries))
        return None

    def _of_the_heaviest(self, own: int, places: dict[str, int]) -> Query | None:
        heaviest = max(
            (account for account, queries in self._by_account.items() if queries),
            key=lambda account: places[account],
            default=None,
        )
        if heaviest is None or places[heaviest] <= own + 1:
            return None
        return next(iter(self._by_account[heaviest]))

    def _of_its_own(self, waiting: Query, account: str, own: int) -> Query | None:
        queries = self._by_account.get(account)
        if not queries or waiting.preempted or len(queries) <= own // LATE_SHARE:
            return None
        return next(iter(queries))


def zone_of(name: str) -> str:
    """The zone that probably holds a name: its parent, or the name itself below a registry.

    Without the list of public suffixes this is a guess. It only decides which of two
    late queries gives way first.
    """
    parent = name.partition(".")[2]
    label, _, above = parent.rpartition(".")
    if not label or ("." not in label and len(above) == 2 and len(label) <= 3):
        return name  # the parent is a top-level domain, or one like co.uk
    return parent
