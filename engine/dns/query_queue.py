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
socket, no clock, no calls; the caller passes the time, and carries out the plan.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from enum import IntEnum
from itertools import chain

from msgspec import Struct, field

from .pacing import QueryPace
from .response import DohResponse, TransportFailed

LATE_S = 0.3  # a cached answer takes 20 ms, one that must be found about 100
ZONE_LATE_MAX = 8  # more of one zone show that its name servers hang
LATE_SHARE = 4  # late queries may hold a quarter of an account's slots while its other queries wait
ACCOUNTS_COMPARED = 16  # at each turn: bounds the work
REVIEW_S = 0.02  # between two searches for late queries while some wait


class Priority(IntEnum):
    """What needs the answer; a smaller number goes first within an account."""

    RETURNED = 0  # it had its turn, and no connection took it
    PROBE = 1  # layer 4's deadline is running
    REQUEST = 2  # layer 3's deadline is running
    LIST = 3  # its deadline starts with the first query
    AGAIN = 4  # it gave way before


class Query(ABC):
    """A query to one resolver, wanted by one account or more.

    `wanted_by` is shared with the caller; the queue reads it when the query has to wait.
    The endpoint calls the methods, after its turn and never from within a call of the caller's.
    """

    __slots__ = ("account", "name", "preempted", "question", "sent_at", "tries", "wanted_by")

    def __init__(self, name: str, question: bytes, wanted_by: dict[str, Priority]) -> None:
        self.name = name
        self.question = question
        self.wanted_by = wanted_by
        self.account = ""  # the account whose turn it used
        self.sent_at: float | None = None  # None while it waits
        self.preempted = False
        self.tries = 0  # that ended with their connections

    def count_try(self) -> None:
        self.tries += 1

    def sent(self, now: float) -> None:  # noqa: B027 - not each needs to know
        """Its turn has come: it is sent."""

    def gave_way(self) -> None:  # noqa: B027
        """It was cancelled because another one is sent in its place; it waits again."""

    @abstractmethod
    def received(self, result: DohResponse | TransportFailed) -> None:
        """It is answered, or has failed. Nothing is called after this."""


class QueryPlan(Struct, frozen=True):
    """What the endpoint does now, in this order."""

    stop: list[Query] = field(default_factory=list)  # cancel them: they give way
    send: list[Query] = field(default_factory=list)


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

    def discard(self, query: Query) -> bool:
        """Remove the query. False: it was not here."""
        for waiting in self._waiting:
            if query in waiting:
                del waiting[query]
                return True
        return False

    def first(self) -> Query:
        return next(iter(next(filter(None, self._waiting))))

    def all(self) -> Iterator[Query]:
        return chain.from_iterable(self._waiting)


class QueryQueue:
    """The queries to one resolver: those under way, and those that wait for a slot."""

    def __init__(self, pace: QueryPace | None = None) -> None:
        self._pace = pace or QueryPace()
        self._sent: dict[Query, None] = {}  # the oldest first
        self._unwanted: dict[Query, None] = {}  # of those: their answers are not needed
        self.slots: dict[str, int] = {}  # queries under way, by account
        # In the order of their turns.
        self._by_account: OrderedDict[str, _AccountQueue] = OrderedDict()

    @property
    def waiting(self) -> bool:
        return bool(self._by_account)

    @property
    def under_way(self) -> int:
        return len(self._sent)

    def holds(self, query: Query) -> bool:
        """Whether the query is under way."""
        return query in self._sent

    def submit(self, query: Query) -> None:
        """Let the query wait for its turn."""
        for account, priority in query.wanted_by.items():
            self._join(query, account, Priority.AGAIN if query.preempted else priority)

    def claim(self, query: Query, account: str, priority: Priority) -> None:
        """Another account wants it too: the earlier of their turns counts."""
        if query.sent_at is None:
            self._join(query, account, Priority.AGAIN if query.preempted else priority)

    def remove(self, query: Query) -> bool:
        """The query is answered or cancelled: free its slot, or stop waiting. False: it was not here."""
        if query in self._sent:
            self._free_slot(query)
            return True
        waited = [self.withdraw(query, account) for account in query.wanted_by]
        return any(waited)

    def withdraw(self, query: Query, account: str) -> bool:
        """The account no longer waits for it. False: it did not."""
        queue = self._by_account.get(account)
        if queue is None or not queue.discard(query):
            return False
        if not queue:
            del self._by_account[account]
        return True

    def set_unwanted(self, query: Query) -> None:
        """Its answer is no longer needed: it gives way as soon as another one waits."""
        if query in self._sent:
            self._unwanted[query] = None

    def put_back(self, query: Query) -> None:
        """It could not be sent after all: it waits again, as the first, if its answer is needed."""
        is_unwanted = query in self._unwanted
        self._free_slot(query)
        query.sent_at = None
        for account in query.wanted_by if not is_unwanted else ():
            self._join(query, account, Priority.RETURNED)
            self._by_account.move_to_end(account, last=False)

    def all(self) -> list[Query]:
        """The queries under way and those that wait."""
        waiting = (queue.all() for queue in self._by_account.values())
        return [*self._sent, *chain.from_iterable(waiting)]

    def plan(self, now: float, free: int) -> QueryPlan:
        """Send waiting queries while slots are free; so many are free now."""
        plan = QueryPlan()
        while self._by_account and self._pace.ready(now):
            if free > 0:
                free -= 1
            elif self._unwanted:
                plan.stop.append(self._drop_unwanted())
            else:
                break
            plan.send.append(self._send_first(self._next_account(), now))
        return plan

    def review(self, now: float, free: int) -> QueryPlan:
        """The same, and late queries give way to those that wait, by the rules above."""
        plan = self.plan(now, free)
        late = _Late(self._sent, now)
        for account in self._accounts_by_slots():
            while (queue := self._by_account.get(account)) is not None and self._pace.ready(now):
                victim = late.victim(queue.first(), account, self.slots)
                if victim is None:
                    break
                self._preempt(victim)
                plan.stop.append(victim)
                plan.send.append(self._send_first(account, now))
        return plan

    # -- sending and recalling ---------------------------------------------------------------

    def _send_first(self, account: str, now: float) -> Query:
        query = self._by_account[account].first()
        for each in (account, *query.wanted_by):
            self.withdraw(query, each)
        if account in self._by_account:
            self._by_account.move_to_end(account)
        self._pace.spend()
        query.account = account
        query.sent_at = now
        self._sent[query] = None
        self.slots[account] = self.slots.get(account, 0) + 1
        return query

    def _preempt(self, query: Query) -> None:
        self._free_slot(query)
        query.sent_at = None
        query.preempted = True
        self.submit(query)

    def _drop_unwanted(self) -> Query:
        query = next(iter(self._unwanted))
        self._free_slot(query)
        query.sent_at = None
        return query

    def _free_slot(self, query: Query) -> None:
        del self._sent[query]
        self._unwanted.pop(query, None)
        left = self.slots.pop(query.account) - 1
        if left:
            self.slots[query.account] = left

    # -- waiting -----------------------------------------------------------------------------

    def _join(self, query: Query, account: str, priority: Priority) -> None:
        queue = self._by_account.get(account)
        if queue is None:
            queue = self._by_account[account] = _AccountQueue()
        queue.add(query, priority)

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
