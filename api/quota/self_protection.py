"""Self-protection: lists pause while nothing but this machine or its network is to blame.

A long row of results that blame us or the network, at hosts of many operators, is a suspicion,
no more: it may be one customer's list of dead domains, or of hosts that refuse us on purpose.
So a probe decides (`probes.py`), and asks what no customer chooses alone: domains whose hosts
answered others before, and the large providers. If nothing answers, this process is blind: its
lists pause, and with `refuses` requests are refused before a unit is counted. Any mailbox's
answer ends that, a request's as well as a probe's, which is repeated every PROBE_EVERY_S.

Each process judges by its own results: it may have an egress of its own.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest

import trio

from mailprobe.api.refusals import ProbingUnavailable
from mailprobe.api.results.lights import OURS, UNREACHED
from mailprobe.engine import Answer
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.smtp.operators import MailOperators
from mailprobe.engine.verdict import Reason

log = logging.getLogger("mailprobe.protection")

RESULTS_MIN = 200  # in a row; a handful of dead domains is no trouble of ours
OPERATORS_MIN = 10  # of their hosts: more than one customer's domains, as a rule
HOSTS_MAX = 10_000  # whose operators are remembered: some 2 MiB
LABELS = 2  # the end of a host's name that counts as its operator, if none is known
PROBE_EVERY_S = 30.0  # and the shortest time between two suspicions
DOMAINS_MAX = 32  # remembered of hosts that answered, and of the row; a probe asks a few of them
TURNED_BY = 4  # domains: the next probe begins so much later in each group
DOMAINS_OF_LIST_MAX = 4  # that waits

# What only a mail host can have answered, just now: a remembered catch-all is left out.
SEEN: frozenset[Reason] = frozenset(
    {
        *("accepted", "untested", "no_mailbox", "disabled", "full", "greylisted", "temporary"),
        *("policy", "unclear", "rate_limited"),
    }
)

Probe = Callable[[Sequence[str], bool], Awaitable[bool]]  # domains; must a mailbox answer?


def is_failure(cause: VerdictCause) -> bool:
    """May this machine or its network be the reason? Our own permits and pauses are not meant."""
    return cause.reason not in ("no_connection_free", "paused") and (
        cause.blame in OURS or cause.reason in UNREACHED
    )


def is_seen(cause: VerdictCause) -> bool:
    """Has a mail host answered about a mailbox?"""
    return cause.reason in SEEN and cause.blame not in OURS


@dataclass(slots=True)
class ProbeDomains:
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


@dataclass(slots=True)
class FailureRow:
    """The failures since a mail host last answered about a mailbox."""

    results: int = 0
    reasons: Counter[Reason] = field(default_factory=Counter)
    refused: int = 0  # of these, results in which a host refused this machine
    operators: set[str] = field(default_factory=set)  # at most OPERATORS_MIN
    dead: set[str] = field(default_factory=set)  # hosts that could not be reached, counted once
    domains: ProbeDomains = field(default_factory=ProbeDomains)

    def add(self, account: str, domain: str, host: str, operator: str, cause: VerdictCause) -> None:
        if cause.blame not in OURS:
            if host in self.dead or len(self.dead) >= RESULTS_MIN:
                return
            self.dead.add(host)
        self.results += 1
        self.reasons[cause.reason] += 1
        self.refused += cause.blame == "us"
        self.domains.add(account, domain)
        if len(self.operators) < OPERATORS_MIN:
            self.operators.add(operator)

    @property
    def is_suspect(self) -> bool:
        return self.results >= RESULTS_MIN and len(self.operators) >= OPERATORS_MIN

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
        self._waiting = ProbeDomains()  # of lists that wait
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
                self._row.add(account, domain, host, operator, cause)
        if self._row.is_suspect:
            self._suspicion.set()

    def check(self) -> None:
        """Raise ProbingUnavailable if requests are to be refused now."""
        if self.holds_requests:
            raise ProbingUnavailable

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

    @property
    def wants_domains(self) -> bool:
        """While blind: does the next probe lack domains of lists that wait?"""
        return self.blind and not self._waiting.by_account

    def waiting(self, account: str, domains: Sequence[str]) -> None:
        """A list of this account waits, which has these domains: the next probe asks some."""
        for domain in domains[:DOMAINS_OF_LIST_MAX]:
            self._waiting.add(account, domain)

    async def watch(self, probe: Probe) -> None:
        """Probe on each suspicion, and while blind; runs until cancelled."""
        while True:
            await self._suspicion.wait()
            await self._judge(probe)
            await self._wait_until_seen()

    # below: the task of `watch`

    async def _judge(self, probe: Probe) -> None:
        """Probe once, and change the state by the result."""
        row = self._row
        groups = (self._witnesses, self._waiting, row.domains)
        turned = (_turned(each.of_accounts(), self._probes) for each in groups)
        in_turn = (domain for each in zip_longest(*turned) for domain in each if domain)
        self._probes += 1
        self._waiting = ProbeDomains()
        if await probe(list(dict.fromkeys(in_turn)), row.is_refusal):
            self._end_row()
        elif not self.blind and row is self._row:
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
