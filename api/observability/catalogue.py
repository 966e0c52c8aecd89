"""The table of metrics, each with every series that it can ever have.

docs/metrics.md describes them to operators, and a test compares the two. No label
is ever an address, a domain, a host, a key or an account. A new operation, refusal or rule
gets its series from its own table.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Protocol, get_args

from mailprobe.engine import deciding_rules
from mailprobe.engine.egress import ONE_EGRESS, Egresses, EgressState
from mailprobe.engine.shared_cache import FactKind
from mailprobe.engine.smtp.operators import budget_labels, operator_labels
from mailprobe.engine.verdict import LADDER, Outcome, Reason
from mailprobe.storage.list_jobs.queues import QueueName
from mailprobe.storage.store import Store

from ..error_table import BEFORE_ROUTING, ErrorRow
from ..error_table import TABLE as REFUSALS
from ..refusals import MethodNotAllowed, NoSuchRoute, OurFault, Refusal
from .request_context import UNROUTED
from .shared_counters import Family, Labels

GONE = "gone"  # the status of a request whose answer never began
TESTS = "test"  # the operation of requests with a test key, whichever they want
OUR_FAULT = REFUSALS[OurFault].code
NO_CHECK = "none"  # the failed_check of a verdict that has none

LAYER_BOUNDS = (5e-5, 1e-4, 1e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.05)
LOOKUP_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 1.5, 3.0)
REQUEST_BOUNDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.05, 5.0, 10.0)
STORE_BOUNDS = (2.5e-4, 5e-4, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.8)


def _verdicts() -> tuple[Labels, ...]:
    ends = dict.fromkeys(rung_labels(outcome) for outcome in LADDER)
    return tuple((*end, rule) for end in ends for rule in deciding_rules())


@cache
def rung_labels(outcome: Outcome) -> Labels:
    """The outcome's status and failed check."""
    rung = LADDER[outcome]
    return rung.status, rung.failed_check or NO_CHECK


class CountedOperation(Protocol):
    """What the series of an operation's metrics depend on."""

    @property
    def name(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def refusals(self) -> tuple[type[Refusal], ...]: ...
    @property
    def promises(self) -> object | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def spends_units(self) -> bool: ...


Operations = Sequence[CountedOperation]


def _refused(operations: Operations) -> Iterator[tuple[str, ErrorRow]]:
    """Each operation with each of its refusals, and the refusals without an operation."""
    servers = tuple(map(type, BEFORE_ROUTING.values()))  # these may end any request
    for operation in operations:
        for kind in (*operation.refusals, *servers):
            yield operation.name, REFUSALS[kind]
    for kind in (NoSuchRoute, MethodNotAllowed, *servers):
        yield UNROUTED, REFUSALS[kind]


def _codes(operations: Operations) -> tuple[Labels, ...]:
    return tuple(dict.fromkeys((name, row.code) for name, row in _refused(operations)))


def _statuses(operations: Operations) -> tuple[Labels, ...]:
    """Of each operation, and of the requests with test keys, whichever operation they want."""
    given = [(each.name, str(each.status)) for each in operations]
    given += [(each.name, "202") for each in operations if each.promises]
    refused = [(name, str(row.status)) for name, row in _refused(operations)]
    gone = ((*name, GONE) for name in (*_names(operations), (TESTS,)))
    verifying = {each.name for each in operations if each.key in ("standard", "form")}
    tests = [(TESTS, status) for name, status in (*given, *refused) if name in verifying]
    return tuple(dict.fromkeys((*given, *refused, *tests, *gone)))


def _names(operations: Operations) -> tuple[Labels, ...]:
    return (*((each.name,) for each in operations), (UNROUTED,))


def _spending(operations: Operations) -> tuple[Labels, ...]:
    return tuple((each.name,) for each in operations if each.spends_units)


QUEUES: tuple[Labels, ...] = tuple((name,) for name in get_args(QueueName))
EGRESS_STATES: tuple[EgressState, ...] = get_args(EgressState)
FACTS: tuple[Labels, ...] = tuple((kind,) for kind in get_args(FactKind))
METHODS: tuple[Labels, ...] = tuple(
    (name,) for kind in Store.__mro__ for name in vars(kind) if name[0] != "_"
)


def _replies(egresses: Egresses) -> tuple[Labels, ...]:
    names = [row.name for row in egresses.rows]
    return tuple(product(names, operator_labels(), get_args(Reason)))


def families(operations: Operations, egresses: Egresses = ONE_EGRESS) -> tuple[Family, ...]:
    """All metrics of a service with these operations. Needs the rules of replies.toml."""
    return (*_of_engine(egresses), *_of_requests(operations), *_of_store())


def _of_engine(egresses: Egresses) -> tuple[Family, ...]:
    filed = () if egresses is ONE_EGRESS else tuple(row.name for row in egresses.rows)
    return (
        Family("counter", "mailprobe_verdicts", "Verdicts given.",
               ("status", "failed_check", "rule"), _verdicts(), sparse=True),
        Family("histogram", "mailprobe_layer_seconds", "Time of an address in a layer.",
               ("layer",), (("text",), ("mx",), ("smtp",)), LAYER_BOUNDS),
        Family("counter", "mailprobe_dns_lookups", "DNS queries sent to the resolvers.",
               ("outcome",), (("certain",), ("failed",))),
        Family("histogram", "mailprobe_dns_lookup_seconds", "Duration of a DNS look-up.",
               bounds=LOOKUP_BOUNDS),
        Family("counter", "mailprobe_dns_cache_hits", "Look-ups answered from the cache.",
               ("what",), (("mx",), ("addresses",))),
        Family("counter", "mailprobe_smtp_connections", "Connection attempts to mail hosts.",
               ("outcome",), (("greeted",), ("failed",))),
        Family("counter", "mailprobe_smtp_sessions_reused", "Idle SMTP sessions used again."),
        Family("counter", "mailprobe_smtp_limits_lowered",
               "Times the connection limit of a mail host was lowered."),
        Family("counter", "mailprobe_smtp_rests", "Times a mail host got a back-off.",
               ("cause",), (("refused",), ("unreachable",))),
        Family("counter", "mailprobe_facts_shared", "Facts written for the other processes.",
               ("kind",), FACTS),
        Family("counter", "mailprobe_facts_absorbed", "Facts of other processes that were of use.",
               ("kind",), FACTS),
        Family("counter", "mailprobe_smtp_recipients_refused", "Recipients refused for good.",
               ("operator",), tuple((label,) for label in budget_labels()), sparse=True),
        Family("counter", "mailprobe_smtp_budget_lacking",
               "Recipients not sent because the host tolerates no more refusals.",
               ("operator", "recipient"),
               tuple((label, kind) for label in budget_labels() for kind in ("listed", "random")),
               sparse=True),
        Family("counter", "mailprobe_replies", "Decisions of the SMTP layer about addresses.",
               ("egress", "operator", "reason"), _replies(egresses), sparse=True),
        Family("shared", "mailprobe_egress_state", "1 in the state that the egress is in.",
               ("egress", "state"), tuple((name, state) for name in filed for state in EGRESS_STATES)),
        Family("shared", "mailprobe_egress_addresses_today", "Addresses of this UTC day, of all processes.",
               ("egress",), tuple((name,) for name in filed)),
        Family("shared", "mailprobe_egress_addresses_limit", "Limit of this day; 0 if there is none.",
               ("egress",), tuple((name,) for name in filed)),
        Family("gauge", "mailprobe_smtp_connections_open", "Open connections to mail hosts."),
        Family("gauge", "mailprobe_smtp_hosts", "Mail hosts with state in memory."),
        Family("gauge", "mailprobe_smtp_hosts_resting", "Mail hosts in back-off."),
        Family("gauge", "mailprobe_smtp_hosts_waiting", "Mail hosts that wait for a connection permit."),
        Family("gauge", "mailprobe_probes", "Addresses in the SMTP layer."),
        Family("gauge", "mailprobe_probes_waiting", "Of these, addresses that wait.",
               ("at",), (("places",), ("host",))),
    )  # fmt: skip


def _of_requests(operations: Operations) -> tuple[Family, ...]:
    return (
        Family("counter", "mailprobe_requests", "Requests that have ended.",
               ("operation", "status"), _statuses(operations)),
        Family("histogram", "mailprobe_request_seconds", "Duration of a request.",
               ("operation",), _names(operations), REQUEST_BOUNDS),
        Family("counter", "mailprobe_refusals", "Requests that were refused.",
               ("operation", "code"), _codes(operations)),
        Family("counter", "mailprobe_addresses_asked", "Addresses in requests, including refused ones.",
               ("operation",), _spending(operations)),
        Family("gauge", "mailprobe_requests_in_flight", "Requests under way."),
        Family("gauge", "mailprobe_streams_in_flight", "Of these, streams."),
        Family("gauge", "mailprobe_addresses_under_way", "Addresses reserved and not answered."),
        Family("gauge", "mailprobe_addresses_under_way_max", "Limit of addresses under way; beyond it requests get 503."),
        Family("gauge", "mailprobe_blind", "Workers whose lists pause because they reach no mail host."),
        Family("gauge", "mailprobe_drained", "Workers that take no lists, because the operator has drained them."),
    )  # fmt: skip


def _of_store() -> tuple[Family, ...]:
    return (
        Family("histogram", "mailprobe_store_seconds", "Duration of the store's transactions.",
               ("method",), METHODS, STORE_BOUNDS),
        Family("counter", "mailprobe_store_unavailable", "Transactions that failed: the store was unavailable.",
               ("method",), METHODS),
        Family("shared", "mailprobe_queue_due", "Items that are due and not claimed, counted to 10,000.",
               ("queue",), QUEUES),
        Family("shared", "mailprobe_queue_oldest_seconds", "How long the first of them is due.",
               ("queue",), QUEUES),
        Family("shared", "mailprobe_last_sent_timestamp_seconds",
               "When a message of this kind was last accepted, since 1970; 0 if none was.",
               ("kind",), (("alert",), ("meter",))),
        Family("counter", "mailprobe_background_failures", "Bugs in background work; the log has each."),
        Family("gauge", "mailprobe_background_writes", "Writes that outlive their requests."),
    )  # fmt: skip
