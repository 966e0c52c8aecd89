"""A client of the market on virtual time: how the engine uses the tolerance of a mail host, without sockets.

It keeps the rules of dev/engine.md with the engine's own classes `Tolerance` and `HostControls`
inside: batches and sessions, random names after a first acceptance, growth and its proof,
verdicts that wait for a reply of the other kind, lists that come back and requests that cannot.
What the engine does for the sake of sockets, deadlines and other faults is left out. The older
policies that it is compared with are a `Policy` each.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from math import inf

from mailprobe.engine.smtp.operators import MailOperators, load_operators

from .host_client import REQUEST_S, HostClient
from .hosts import MarketAddress
from .policies import MANY, Policy, Row


class MarketClient:
    """All hosts of one client, and its clock."""

    def __init__(self, policy: Policy, operators: MailOperators | None = None) -> None:
        self.now = 0.0
        self.operators = load_operators() if operators is None else operators
        self.rows: list[Row] = []
        self._policy = policy
        self._hosts: dict[str, HostClient] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._numbers = count()
        self._waiting: deque[Row] = deque()  # requests beyond what is asked at a time
        self._under_way = 0
        self._at_a_time = MANY

    def at(self, after_s: float, act: Callable[..., None], *arguments: object) -> None:
        event = (self.now + after_s, next(self._numbers), act, arguments)
        heapq.heappush(self._events, event)

    def add_list(
        self, addresses: Sequence[MarketAddress], account: str, patience_s: float, at: float = 0.0
    ) -> None:
        """Ask a list, whose rows wait for as long as its patience lasts."""
        rows = [Row(each, account, at, at + patience_s, is_request=False) for each in addresses]
        self.rows += rows
        by_host: dict[str, list[Row]] = {}
        for row in rows:
            by_host.setdefault(row.address.domain.host.name, []).append(row)
        for waiting in by_host.values():
            self.at(at, self._host(waiting[0]).join, waiting)

    def add_requests(
        self,
        addresses: Sequence[MarketAddress],
        accounts: Sequence[str],
        per_s: float,
        at_a_time: int = MANY,
        at: float = 0.0,
    ) -> None:
        """Ask single requests, of these accounts in turn."""
        self._at_a_time = at_a_time
        for number, address in enumerate(addresses):
            begins = at + number / per_s
            account = accounts[number % len(accounts)]
            row = Row(address, account, begins, inf, is_request=True)
            self.rows.append(row)
            self.at(begins, self._begin_request, row)

    def _begin_request(self, row: Row) -> None:
        if self._under_way >= self._at_a_time:
            self._waiting.append(row)
            return
        self._under_way += 1
        row.until = self.now + REQUEST_S
        self.at(REQUEST_S, self._end_request, row)
        self._host(row).join([row])

    def _end_request(self, row: Row) -> None:
        """Its deadline: accepted, it is told 0.90; else late."""
        host = self._host(row)
        if row.said is None:
            host.end_request(row)

    def request_ended(self, row: Row) -> None:
        self._under_way -= 1
        if self._waiting:
            self._begin_request(self._waiting.popleft())

    def _host(self, row: Row) -> HostClient:
        host = row.address.domain.host
        known = self._hosts.get(host.name)
        if known is None:
            known = self._hosts[host.name] = HostClient(self, host, self._policy)
        return known

    def run(self) -> None:
        """Until everything is told."""
        events = self._events
        while events:
            self.now, _, act, arguments = heapq.heappop(events)
            act(*arguments)
