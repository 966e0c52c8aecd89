"""The known tolerance of one mail host, and how much of it is left to each account. Pure."""

from collections import deque
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ..leases.ledger import CEILING, HostRecord
from .accounts import AccountsHere
from .bans import Bans
from .limits import HOUR_S, UNKNOWN, WINDOW_S, Kind, RefusalLimits
from .rate import RecipientRate
from .refusals import RefusalTimes
from .share import HourlyShare

if TYPE_CHECKING:
    from ..leases.refusal_leases import RefusalLease

OWN_START = 4  # one less than fail2ban's maxretry, the commonest guard of a domain's own server
SHARED_START = 16  # of a host at which many domains have their mail
LEARNED_LEAST = 2  # the lowest tolerance that is assumed after a ban
SESSION_FIRST, SESSION_GROWN = 2, 8  # Postfix slows a session down from its eleventh error
TOOK_S = 20.0  # a host that still answers so long after a refusal has taken it
PRIOR_SHARE, PRIOR_WEIGHT = 0.05, 20  # of refused recipients, before the host has shown its own
SHARE_LEAST = 0.02
CALM_FROM = 10  # recipients, of which at most one in CALM_SHARE was refused,
CALM_SHARE = 10  # make a list that is asked in whole batches also before the tolerance has grown
COUNTED_MAX = 4_000  # recipients in the estimate; then both counts are halved
REQUEST_PRICE = 0.25


class KnownLimits(Struct, eq=False):
    """The tolerance of one mail host, and the limits beside it."""

    tolerance: int = OWN_START
    ceiling: int = CEILING
    hour: int | None = None  # refusals an hour, from a row or from a ban
    row: RefusalLimits = UNKNOWN
    label: str = ""  # of the row, for metrics
    is_shared: bool = False  # addresses of another domain than its own are accepted here
    has_grown: bool = False
    is_careful: bool = False  # its numbers were learned from a ban
    took: int = 0  # most refusals within the window after which it still answered
    changed: bool = False  # since the record was taken last
    answered_at: float = -inf
    _untaken: deque[tuple[float, int]] = field(  # (time, count)
        default_factory=partial(deque, maxlen=CEILING)
    )
    proof_at: float = -inf  # when an address was accepted last,
    is_proven: bool = False  # and that was after the latest refusal
    proofs_lacking: bool = False  # no recipient was ever accepted, and postmaster is refused

    # -- what it takes -------------------------------------------------------------------------

    @property
    def takes(self) -> int:
        """Refusals that it takes in ten minutes: at most those of its hour."""
        return self.tolerance if self.hour is None else min(self.tolerance, self.hour)

    @property
    def is_counted(self) -> bool:
        """Does the host limit what it refuses in an hour, or a share of what it is asked?"""
        return self.hour is not None or self.row.share is not None

    @property
    def is_strict(self) -> bool:
        """Does each recipient under way count as refused?"""
        return self.is_careful or self.hour is not None

    @property
    def is_tried(self) -> bool:
        """Is it known to take more than the start, from its own conduct or from its row?"""
        return self.has_grown or self.row.tolerance is not None

    @property
    def session_max(self) -> int:
        """Refused recipients of one session."""
        if self.row.session is not None:
            return self.row.session
        return SESSION_GROWN if self.has_grown or self.row.tolerance else SESSION_FIRST

    # -- what teaches it -----------------------------------------------------------------------

    def set_row(self, row: RefusalLimits, label: str) -> None:
        """A name, a greeting or a reply has identified the host: this row applies from now on."""
        self.row, self.label = row, label
        if row.hour is not None:
            self.hour = row.hour if self.hour is None else min(self.hour, row.hour)
        if self.is_careful:
            return
        if row.ceiling is not None:
            self.ceiling = row.ceiling
        if row.tolerance is not None:
            self.tolerance = max(self.tolerance, row.tolerance) if self.has_grown else row.tolerance
        self.tolerance = min(self.tolerance, self.ceiling)

    def share_host(self) -> None:
        """An address of another domain than the host's was accepted: many domains share it."""
        if self.is_shared:
            return
        self.is_shared = self.changed = True
        self._start_shared()

    def grow(self) -> None:
        """Raise the tolerance: work needs it, and the host still judges."""
        self.tolerance = min(self.ceiling, 2 * self.tolerance)
        self.has_grown = self.changed = True

    def limit_hour(self, hour: int) -> None:
        """It turned after more refusals in an hour than these."""
        self.hour = hour if self.hour is None else min(self.hour, hour)
        self.changed = True

    def note_answered(self, now: float, *, accepted: bool) -> None:
        """It answered a recipient: what it refused TOOK_S ago was not too much."""
        self.answered_at = now
        if self._untaken and self._untaken[0][0] <= now - TOOK_S:
            self._note_taken(now - TOOK_S)
        if accepted:
            self.proof_at, self.is_proven, self.proofs_lacking = now, True, False

    def note_refused(self, now: float, recent: int) -> None:
        """It refused one more recipient, which makes so many within the window."""
        self._untaken.append((now, recent))
        self.is_proven = False

    def doubt(self) -> None:
        """Another process was refused here after our latest acceptance."""
        self.is_proven = False

    def proofs_lack(self) -> None:
        """The host has accepted none, and refuses its postmaster: growth can't be proven."""
        self.proofs_lacking = True

    def _note_taken(self, at: float) -> None:
        while self._untaken and self._untaken[0][0] <= at:
            count = self._untaken.popleft()[1]
            if count > self.took:
                self.took, self.changed = count, True

    def note_ban(self, recent: int, in_hour: int) -> None:
        """It bans us after so many refusals: remember what it took before."""
        self._note_taken(self.answered_at - TOOK_S)
        least = max(LEARNED_LEAST, self.took)
        if recent > self.took:
            self.tolerance = least
        else:
            self.hour = max(1, in_hour // 2)
            self.tolerance = min(self.tolerance, least)
        self.ceiling = self.tolerance
        self.has_grown, self.is_careful, self.changed = False, True, True

    def _start_shared(self) -> None:
        if self.is_shared and not self.is_careful and self.row.tolerance is None:
            self.tolerance = min(self.ceiling, max(self.tolerance, SHARED_START))

    # -- what is kept --------------------------------------------------------------------------

    def report(self, *, again: bool = False) -> None:
        """The record was taken, to be reported; `again`: that failed."""
        self.changed = again

    def learn(self, record: HostRecord) -> None:
        """Another process, or an earlier run, has learned this of the host."""
        self.is_shared = self.is_shared or record.shared
        if record.careful:
            self.is_careful = True
            self.ceiling = min(self.ceiling, max(LEARNED_LEAST, record.ceiling))
            self.tolerance = min(max(LEARNED_LEAST, record.tolerance), self.ceiling)
            self.has_grown = False
        elif record.tolerance > self.tolerance and not self.is_careful:
            self.tolerance, self.has_grown = min(record.tolerance, self.ceiling), True
        else:
            self._start_shared()
        if record.hour is not None:
            self.hour = record.hour if self.hour is None else min(self.hour, record.hour)
        self.took = max(self.took, record.took)


class RefusalBudget(Struct, eq=False):
    """The refusals that one mail host still takes, shared by account."""

    accounts: AccountsHere
    known: KnownLimits = field(default_factory=KnownLimits)
    refusals: RefusalTimes = field(default_factory=RefusalTimes)
    bans: Bans = field(default_factory=Bans)
    rate: RecipientRate = field(default_factory=RecipientRate)
    lease: "RefusalLease | None" = None  # None: all of it belongs to this process
    asked: int = 0  # recipients, as the estimate counts them
    refused: int = 0
    _answered: HourlyShare = field(default_factory=HourlyShare)
    _under_way: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    _requested_at: float = -inf

    # -- may it be asked? ----------------------------------------------------------------------

    def session_window(self, refused: int) -> int:
        """How many recipients a session with so many refused may have under way."""
        known = self.known
        left = known.session_max - refused
        if left <= 0:
            return 0
        if known.row.session is not None and known.row.session < SESSION_GROWN:
            return left
        # As many more as it has accepted, while it refuses hardly any.
        accepted = self.asked - self.refused
        return min(SESSION_GROWN, left + accepted * (self.refused * CALM_SHARE <= accepted))

    @property
    def share(self) -> float:
        """The share of recipients that it refuses, by a calm estimate."""
        asked = self.asked + PRIOR_WEIGHT
        return max(SHARE_LEAST, (self.refused + PRIOR_WEIGHT * PRIOR_SHARE) / asked)

    @property
    def _is_calm(self) -> bool:
        return self.asked >= CALM_FROM and self.refused * CALM_SHARE <= self.asked

    def room(self, kind: Kind, account: str, now: float, *, queued: int = 0) -> int:
        """How many more recipients of this kind the account may have sent now.

        0: others are under way, or nothing is left (see `Tolerance.is_spent`). A random name of a list
        leaves room to the `queued` rows where the host limits an hour or a share.
        """
        if kind is Kind.CONTROL:
            return 1
        return self.room_beside(self._price_under_way(now), kind, account, now, queued=queued)

    def has_plenty(self, count: int, now: float) -> bool:
        """May so many be sent, whoever asks? A cheap answer for most batches."""
        known = self.known
        if known.is_counted or self.rate.is_limited:
            return False
        recent = self.refusals.guard.recent(now)
        flying = self._price_under_way(now)
        used = recent + flying
        price = count * self._list_price(known.tolerance - used)
        lacks = self.lease is not None and (self._is_new or flying + price > self.lease.left)
        return not lacks and used + price <= known.tolerance / 4

    def awaits_lease(self, kind: Kind, account: str, now: float) -> bool:
        """Is a lease missing, which may still come, rather than tolerance?"""
        lease = self.lease
        if lease is None:
            return False
        flying = self._price_under_way(now)
        unleased = self.room_beside(flying, kind, account, now, leased=False)
        if lease.left < 1 and (lease.is_asked or lease.is_requesting):
            return unleased > 0
        if lease.standing.is_denied or lease.standing.is_contested:
            return False
        return unleased > self.room_beside(flying, kind, account, now)

    def is_limited_otherwise(self, now: float) -> bool:
        """Is the limit one that does not grow: an hour's, a share's, or a store without an answer?"""
        hour = self.known.hour
        return (
            (self.lease is not None and self.lease.standing.is_away)
            or self.is_share_spent(now)
            or (hour is not None and self.refusals.in_hour(now) >= hour)
        )

    def is_share_spent(self, now: float) -> bool:
        return self.known.row.share is not None and self._left_of_share(now) <= 0

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
        """room() if those under way may cost `flying`. Not `leased`: of all processes."""
        if now < self.bans.rest_until or (kind is Kind.LIST and now < self.rate.rest.until):
            return 0
        total, own = self.limits_of(kind, account, now)
        own -= self.refusals.of_account(account, now)
        if flying and (here := self.accounts.get(account)) is not None:
            own -= here.under_way * (1.0 if self.known.is_strict else REQUEST_PRICE)
        used = self.refusals.guard.recent(now) + flying
        left = min(total - used, own)
        if self.known.hour is not None:
            left = min(left, self._left_of_hour(self.known.hour, kind, account, now, flying))
        waiting = 0
        if kind is Kind.NAME and self.known.is_counted:  # leave room to the rows that wait
            waiting = queued
            if self.known.row.is_counted:  # one that turned may first have to show that it judges
                waiting = max(queued, self.accounts.rows_waiting(now, HOUR_S + WINDOW_S))
            left -= waiting * self.share
        room = max(0, int(left / self._price(kind, left) + 1e-9))
        if self.lease is not None and leased:
            room = min(room, self._room_of_lease(kind, self.lease.left, flying))
        if room and self.known.row.share is not None:
            # Most of the rows are accepted, and each of them makes room for others.
            room = max(0, min(room, self._left_of_share(now) - min(waiting, SESSION_GROWN)))
        if kind is Kind.LIST and self.rate.is_limited:
            room = 0 if flying and self._under_way[kind] else min(room, 1)
        return room

    @property
    def _is_new(self) -> bool:
        """Is the host still untried? Then each recipient under way uses up one of a lease.

        Each of several processes has a few, and together they must not exceed the tolerance.
        """
        return not (self.known.is_tried or self._is_calm)

    def _room_of_lease(self, kind: Kind, left: int, under_way: float) -> int:
        if not self._is_new:
            return max(0, int((left - under_way) / self._price(kind, left) + 1e-9))
        return max(0, left - (sum(self._under_way.values()) if under_way else 0))

    def limits_of(self, kind: Kind, account: str, now: float) -> tuple[float, float]:
        """The most refusals within the window for this account: of all accounts, and its own."""
        tolerance = self.known.tolerance
        most = tolerance / 2 if kind is Kind.LONE_NAME else float(tolerance)
        if self.accounts.is_alone(account, now):
            return most, most
        if kind.is_of_list:
            of_lists = 2 if now - self._requested_at < HOUR_S else 4 / 3
            return min(most, tolerance / of_lists), tolerance / 2
        here = self.accounts.get(account)
        sure = here is None or here.lives_here
        return (most if sure else min(most, tolerance * 0.75)), tolerance / 2

    def _left_of_hour(
        self, hour: int, kind: Kind, account: str, now: float, flying: float
    ) -> float:
        most = hour / 2 if kind is Kind.LONE_NAME else hour
        left = most - flying - self.refusals.in_hour(now)
        if self.accounts.is_alone(account, now):
            return left
        return min(left, hour / 2 - self.refusals.in_hour_of(account, now))

    def _left_of_share(self, now: float) -> int:
        limit, under_way = self.known.row.share or 1.0, sum(self._under_way.values())
        return self._answered.left(limit, self.refusals.in_hour(now), under_way, now)

    # -- prices --------------------------------------------------------------------------------

    def _list_price(self, left: float) -> float:
        if self.known.is_strict:
            return 1.0
        if self.known.is_tried:
            return self.share if left >= 2 else max(self.share, 0.1)
        return max(2 * self.share, 0.1) if left >= 2 and self._is_calm else 1.0

    def _price(self, kind: Kind, left: float) -> float:
        if kind is Kind.LIST:
            return self._list_price(left)
        return REQUEST_PRICE if kind is Kind.REQUEST and not self.known.is_strict else 1.0

    def _price_under_way(self, now: float) -> float:
        flying = self._under_way
        lists, requests = flying[Kind.LIST], flying[Kind.REQUEST]
        price: float = flying[Kind.NAME] + flying[Kind.LONE_NAME]
        if lists:
            left = self.known.tolerance - self.refusals.guard.recent(now)
            price += lists * self._list_price(left)
        if requests:
            price += requests * self._price(Kind.REQUEST, 0.0)
        return price

    # -- what happens --------------------------------------------------------------------------

    def send(self, kind: Kind, account: str, now: float, mailbox: str = "") -> None:
        """A recipient of this kind is sent; `mailbox` as it was turned away, if it was."""
        if kind is Kind.CONTROL:
            return
        self._under_way[kind] += 1
        if kind.is_name:
            self.accounts.name_sent(mailbox)
            return
        if kind is Kind.REQUEST:
            self._requested_at = now
        self.accounts.meet(account, now).send(kind, mailbox)
        if self.lease is not None:
            self.lease.use(now)

    def lease_by(self, lease: "RefusalLease") -> None:
        """See Tolerance.lease_by()."""
        self.lease = lease

    @property
    def is_busy(self) -> bool:
        """Is a recipient under way?"""
        return any(self._under_way.values())

    def recall(self, kind: Kind, account: str) -> None:
        """A recipient that was sent gets no answer."""
        if kind is Kind.CONTROL:
            return
        self._under_way[kind] = max(0, self._under_way[kind] - 1)
        here = self.accounts.get(account)
        if here is not None and not kind.is_name:
            here.recall()

    def answered(
        self, kind: Kind, account: str, now: float, *, accepted: bool, refused: bool
    ) -> None:
        """A recipient that was sent was answered; `refused` for good (5yz)."""
        self.known.note_answered(now, accepted=accepted)
        if self.rate.is_limited and (accepted or refused):
            self.rate.judged(now)
        if kind is not Kind.CONTROL:
            self._under_way[kind] = max(0, self._under_way[kind] - 1)
            if not kind.is_name:
                self.asked += 1
                self.refused += refused
                if self.asked >= COUNTED_MAX:
                    self.asked, self.refused = self.asked // 2, self.refused // 2
                here = self.accounts.get(account)
                if here is not None:
                    here.answer(accepted=accepted, refused=refused)
        elif not refused:
            return
        if self.known.row.share is not None:
            self._answered.answered(now)
        if refused:
            self.refusals.add(account, now)
            self.known.note_refused(now, self.refusals.guard.count)
            if self.lease is not None:
                self.lease.note(now, account)

    def withdraw_refusal(self, kind: Kind, account: str) -> None:
        """The latest refusal of the account was not the recipient's own."""
        self.refusals.withdraw(account)
        if self.lease is not None:
            self.lease.withdraw(account)
        here = self.accounts.get(account)
        if here is not None and not kind.is_name and kind is not Kind.CONTROL:
            here.withdraw_refusal()
            self.refused = max(0, self.refused - 1)

    def learn(self, asked: int, refused: int) -> None:
        """Add the counts of another process."""
        if asked > self.asked:
            self.asked, self.refused = asked, refused
