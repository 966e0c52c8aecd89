"""Self-protection: lists pause while nothing but this machine or its network is to blame.

A long row of results that blame us or the network, at hosts of many operators, is a suspicion,
no more: it may be one customer's list of dead domains, or of hosts that refuse us on purpose.
Then a probe greets mail hosts of operators that no customer chooses (`self_probe.py`).

    the probe                what the row says            conclusion
    greeted none             anything                     blind
    had none to greet        several accounts agree       blind
    was greeted              hosts refuse us, and
                             several accounts agree       blind
    otherwise                                             not blind: the row begins anew

Several accounts agree if at most half of the row is of one of them, and at most half of its
operators. A blind process pauses its lists, and with `refuses` it refuses requests before a unit
is counted. Meanwhile a request a second goes through, an address of a list now and then, and the
probe is repeated every PROBE_EVERY_S: the answer of any mail host about a mailbox ends the
blindness, and so does a greeting, unless hosts refuse us.

Each process judges by its own results: it may have an egress of its own.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import inf
from typing import Literal

import trio
from msgspec import Struct, field

from mailprobe.engine import Answer
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.smtp.operators import MailOperators
from mailprobe.engine.verdict import Reason

from ..refusals import ProbingUnavailable
from ..results.lights import OURS, UNREACHED

log = logging.getLogger("mailprobe.protection")

RESULTS_MIN = 200  # in a row; a handful of dead domains says nothing about us
OPERATORS_MIN = 10  # of their hosts: more than one customer's domains, as a rule
HOSTS_MAX = 10_000  # whose operators are remembered: some 2 MiB
ACCOUNTS_MAX = 1_000  # of a row that are told apart: a row of so many has several accounts
LABELS = 2  # the end of a host's name that counts as its operator, if none is known
PROBE_EVERY_S = 30.0  # and the shortest time between two suspicions
DOMAINS_MAX = 32  # remembered of hosts that answered; a probe greets a few of them
TURNED_BY = 4  # domains: the next probe begins so much later
# While blind one passes in this time. An account whose request was the last to pass waits twice as
# long: it has at most half of them while others ask.
PASS_EVERY_S: dict["Passing", float] = {"request": 1.0, "job": 1.0, "list": 10.0}

# What only a mail host can have answered, just now: a remembered catch-all is left out.
SEEN: frozenset[Reason] = frozenset(
    {
        *("accepted", "untested", "no_mailbox", "disabled", "full", "greylisted", "temporary"),
        *("policy", "unclear", "rate_limited"),
    }
)

Passing = Literal["request", "job", "list"]
Probe = Callable[[Sequence[str]], Awaitable[bool | None]]  # is one greeted? None: none was there


def is_failure(cause: VerdictCause) -> bool:
    """May this machine or its network be the reason? Our own permits and pauses are not meant."""
    return cause.reason not in ("no_connection_free", "paused") and (
        cause.blame in OURS or cause.reason in UNREACHED
    )


def is_seen(cause: VerdictCause) -> bool:
    """Has a mail host answered about a mailbox?"""
    return cause.reason in SEEN and cause.blame not in OURS


class ProbeDomains(Struct):
    """At most DOMAINS_MAX domains. Beyond it the account that has most loses its oldest."""

    by_account: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(self, account: str, domain: str) -> None:
        known = self.by_account.pop(account, None) or {}
        is_new = domain not in known
        known.pop(domain, None)
        known[domain] = None
        self.by_account[account] = known
        if is_new and sum(map(len, self.by_account.values())) > DOMAINS_MAX:
            account, most = max(self.by_account.items(), key=lambda each: len(each[1]))
            del most[next(iter(most))]
            if not most:
                del self.by_account[account]

    def of_accounts(self) -> list[str]:
        """All of them, one of each account before a second of any, the newest first."""
        columns = [list(reversed(known)) for known in reversed(self.by_account.values())]
        longest = max(map(len, columns), default=0)
        turns = [each[turn] for turn in range(longest) for each in columns if turn < len(each)]
        return list(dict.fromkeys(turns))


class AccountFailures(Struct):
    """The part of a row that is of one account."""

    results: int = 0
    operators: set[str] = field(default_factory=set)  # at most OPERATORS_MIN


class FailureRow(Struct):
    """The failures since a mail host last answered about a mailbox."""

    results: int = 0
    reasons: Counter[Reason] = field(default_factory=Counter)
    refused: int = 0  # of these, results in which a host refused this machine
    operators: set[str] = field(default_factory=set)  # at most OPERATORS_MIN
    dead: set[str] = field(default_factory=set)  # hosts that could not be reached, counted once
    by_account: dict[str, AccountFailures] = field(default_factory=dict)

    def add(self, account: str, host: str, operator: str, cause: VerdictCause) -> None:
        if cause.blame not in OURS:
            if host in self.dead or len(self.dead) >= RESULTS_MIN:
                return
            self.dead.add(host)
        self.results += 1
        self.reasons[cause.reason] += 1
        self.refused += cause.blame == "us"
        if account not in self.by_account and len(self.by_account) >= ACCOUNTS_MAX:
            account = ""
        its = self.by_account.setdefault(account, AccountFailures())
        its.results += 1
        for operators in (self.operators, its.operators):
            if len(operators) < OPERATORS_MIN:
                operators.add(operator)

    @property
    def is_suspect(self) -> bool:
        return self.results >= RESULTS_MIN and len(self.operators) >= OPERATORS_MIN

    @property
    def is_shared(self) -> bool:
        """Without any one account, is half of a suspicion left, by results and by operators?"""
        parts = self.by_account.values()
        owners = Counter(operator for each in parts for operator in each.operators)
        return all(
            (self.results - each.results) * 2 >= RESULTS_MIN
            and (len(owners) - sum(owners[own] == 1 for own in each.operators)) * 2 >= OPERATORS_MIN
            for each in parts
        )

    @property
    def is_refusal(self) -> bool:
        """Do hosts refuse us, rather than not being reached?"""
        return self.refused * 2 > self.results


class SelfProtection:
    """Whether this process sees mail hosts; one per process. Never blind without `watch()`."""

    def __init__(self, operators: MailOperators | None = None, *, refuses: bool = False) -> None:
        self.blind = False
        self._operator_of = lru_cache(HOSTS_MAX)((operators or MailOperators({})).find)
        self._refuses = refuses
        self._row = FailureRow()
        self._witnesses = ProbeDomains()  # whose hosts answered
        self._passed: dict[Passing, tuple[float, str]] = {}  # when one last did, and whose
        self._suspicion = trio.Event()
        self._seen = trio.Event()
        self._scopes: set[trio.CancelScope] = set()
        self._probes = 0  # so far

    def note(self, account: str, answers: Sequence[Answer]) -> None:
        """Take note of answers to an account, in their order."""
        for answer in answers:
            cause, domain = answer.cause, answer.verdict.email.rpartition("@")[2].lower()
            host = answer.verdict.mx_host or domain
            known = self._operator_of(host)
            if is_seen(cause):
                self._witnesses.add(account, domain)
                self._end_row()
            elif is_failure(cause):
                operator = known.id if known else ".".join(host.split(".")[-LABELS:])
                self._row.add(account, host, operator, cause)
        if self._row.is_suspect:
            self._suspicion.set()

    def check(self, account: str) -> None:
        """Raise ProbingUnavailable if this account's request is to be refused now."""
        if self.holds_requests and not self.lets_pass("request", account):
            raise ProbingUnavailable

    def lets_pass(self, kind: Passing, account: str = "") -> bool:
        """While blind: whether one more may ask mail hosts now, so that its answer shows if they answer."""
        now, every_s = trio.current_time(), PASS_EVERY_S[kind]
        at, last = self._passed.get(kind, (-inf, ""))
        if now - at < (every_s if account != last or not account else 2 * every_s):
            return False
        self._passed[kind] = now, account
        return True

    @property
    def holds_requests(self) -> bool:
        return self.blind and self._refuses

    @contextmanager
    def seeing(self) -> Iterator[trio.CancelScope]:
        """Work of a list: it is cancelled when this process turns out to be blind."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    async def watch(self, probe: Probe) -> None:
        """Probe on each suspicion, and while blind; runs until cancelled."""
        while True:
            await self._suspicion.wait()
            await self._judge(probe)
            await self._wait_until_seen()

    # below: the task of `watch`

    async def _judge(self, probe: Probe) -> None:
        """Probe once, and change the state by the result: see the table above."""
        row = self._row
        accounts = len(self._witnesses.by_account)
        domains = self._witnesses.of_accounts() if accounts > 1 else []  # else one account's hosts
        greeted = await probe(_turned(domains, self._probes))
        self._probes += 1
        if row is not self._row:
            return  # a mail host has answered meanwhile
        is_refused = row.is_refusal and row.is_shared
        if greeted and not is_refused:
            self._end_row()
        elif not self.blind and (greeted is False or row.is_shared):
            self._begin_blindness(row)

    async def _wait_until_seen(self) -> None:
        with trio.move_on_after(PROBE_EVERY_S):
            if self.blind:
                self._seen = trio.Event()
                await self._seen.wait()
            await trio.sleep(PROBE_EVERY_S)

    def _begin_blindness(self, row: FailureRow) -> None:
        self.blind = True
        reasons = ",".join(f"{reason}:{count}" for reason, count in row.reasons.most_common(4))
        log.error(
            "lists paused: only this machine or its network is to blame: results=%d reasons=%s",
            row.results, reasons,
        )  # fmt: skip
        for scope in tuple(self._scopes):
            scope.cancel()

    def _end_row(self) -> None:
        if self._row.results:
            self._row = FailureRow()
        if self._suspicion.is_set():
            self._suspicion = trio.Event()
        if self.blind:
            self.blind = False
            self._seen.set()
            log.warning("lists go on: mail hosts answer again")


def _turned(domains: list[str], by: int) -> list[str]:
    """The same in another order each time: a probe asks the first of them."""
    place = by * TURNED_BY % max(1, len(domains))
    return domains[place:] + domains[:place]
