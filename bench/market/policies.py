"""Policies of refused recipients, and what a client of the market asks by them and finds. Pure."""

from collections.abc import Callable
from enum import Enum
from math import inf

from msgspec import Struct, field

from mailprobe.engine.smtp.catchall import Acceptance, DomainAcceptance
from mailprobe.engine.smtp.controls import Known, Treatment
from mailprobe.engine.smtp.tolerance.accounts import AccountsHere, WaitingHosts
from mailprobe.engine.smtp.tolerance.budget import RefusalBudget
from mailprobe.engine.smtp.tolerance.host import Tolerance
from mailprobe.engine.smtp.tolerance.limits import Kind, RefusalLimits

from .hosts import HostAnswer, MarketAddress, MarketDomain

BATCH = 8  # recipients under way in one session
MANY = 1_000

ACCEPTED, REFUSED = Treatment.ACCEPTED, Treatment.REFUSED
TREATMENT = {HostAnswer.ACCEPTED: ACCEPTED, HostAnswer.REFUSED: REFUSED}


class Ending(Enum):
    """What the client is told of an address in the end."""

    DELIVERABLE = "0.97"
    UNTESTED = "0.90"
    CATCH_ALL = "0.65"
    UNDELIVERABLE = "undeliverable"
    HOST_BUDGET = "host_budget"
    BLOCKED = "blocked_us"
    CHANGED = "host_changed"
    UNCONFIRMED = "unconfirmed"
    LATE = "late"  # a request whose deadline ended

    __hash__ = object.__hash__

    @property
    def is_unknown(self) -> bool:
        return self in _UNKNOWN


_UNKNOWN = frozenset(
    {Ending.HOST_BUDGET, Ending.BLOCKED, Ending.CHANGED, Ending.UNCONFIRMED, Ending.LATE}
)


ENDINGS = {Acceptance.SOME: Ending.DELIVERABLE, Acceptance.ALL: Ending.CATCH_ALL}
TREATED = {
    Ending.DELIVERABLE: ACCEPTED,
    Ending.CATCH_ALL: ACCEPTED,
    Ending.UNDELIVERABLE: REFUSED,
}


# -- policies ----------------------------------------------------------------------------------


class Uncounted(RefusalBudget):
    """Refusals are not counted; after a ban the host is left alone."""

    def session_window(self, refused: int) -> int:
        return max(0, BATCH - refused)

    def room_beside(
        self,
        flying: float,
        kind: Kind,
        account: str,
        now: float,
        *,
        queued: int = 0,
        leased: bool = True,
    ) -> int:
        return 0 if now < self.bans.rest_until else MANY

    def has_plenty(self, count: int, now: float) -> bool:
        return now >= self.bans.rest_until


def no_budget() -> Tolerance:
    return Tolerance(budget=Uncounted(AccountsHere(WaitingHosts())))


def fixed() -> Tolerance:
    """Four refusals in ten minutes and 24 an hour, at every host."""
    return Tolerance(RefusalLimits(session=2, tolerance=4, ceiling=4, hour=24))


class Policy(Struct, frozen=True):
    """How refusals are budgeted, and what a refusal and an acceptance are taken for."""

    name: str
    tolerance: Callable[[], Tolerance]
    recognises: bool = True  # a host's software by its greeting and its words
    confirms: bool = True  # verdicts at a new record, and where nobody is accepted
    waits: bool = True  # a list comes back to a host without room, for as long as its patience
    spares_names: bool = False  # a refused listed address proves that its domain judges


NO_BUDGET = Policy(
    "no budget", no_budget, recognises=False, confirms=False, waits=False, spares_names=True
)
FIXED = Policy("fixed 4/24", fixed, recognises=False, confirms=False, spares_names=True)
THESE = Policy("these rules", Tolerance)
POLICIES = (NO_BUDGET, FIXED, THESE)


# -- what is asked -----------------------------------------------------------------------------


class Row(Struct, eq=False):
    """One address of a list or of a request, and what is told of it."""

    address: MarketAddress
    account: str
    began_at: float
    until: float  # a list's end of patience, a request's deadline
    is_request: bool
    said: Ending | None = None
    said_at: float = inf

    @property
    def kind(self) -> Kind:
        return Kind.REQUEST if self.is_request else Kind.LIST

    @property
    def name_kind(self) -> Kind:
        return Kind.LONE_NAME if self.is_request else Kind.NAME


class DomainSeen(Struct, eq=False):
    """What is known of a domain, and the accepted rows that wait for its random name."""

    market: MarketDomain
    record: DomainAcceptance
    awaiting: list[Row] = field(default_factory=list)
    is_due: bool = False  # its random name waits to be sent, or is under way

    def name_kind(self) -> Kind:
        awaiting = self.awaiting
        is_lone = len(awaiting) == 1 and awaiting[0].is_request
        return Kind.LONE_NAME if is_lone else Kind.NAME


class Sent(Struct, eq=False):
    """One recipient of a batch: a listed one, a random name, or a control."""

    kind: Kind
    account: str
    lives: bool
    domain: DomainSeen
    row: Row | None = None
    known: Known | None = None  # of a control
    expected: Treatment | None = None
    is_postmaster: bool = False

    @property
    def mailbox(self) -> str:
        """Of a random name only its domain counts."""
        return self.row.address.mailbox if self.row else f"@{self.domain.record.name}"
