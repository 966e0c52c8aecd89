"""The number of refused recipients that one mail host takes: the policy of this package. Pure."""

from collections import Counter, deque
from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING

from ..leases.ledger import CEILING, HostRecord
from .accounts import AccountsHere
from .bans import Bans
from .guard_count import GuardCount
from .limits import (
    GUARDED_S,
    HOUR_S,
    UNKNOWN,
    WINDOW_S,
    Growth,
    Kind,
    RefusalLimits,
)
from .share import HourlyShare

if TYPE_CHECKING:
    from ..leases.refusal_leases import RefusalLease

OWN_START = 4  # one less than fail2ban's maxretry, the commonest guard of somebody's own server
SHARED_START = 16  # of a host at which many domains have their mail
BAN_LEAST = 3  # refusals within an hour: no guard that we know bans at fewer (MDaemon at the third)
LEARNED_LEAST = 2  # what a host that bans us is asked for at least
SESSION_FIRST, SESSION_GROWN = 2, 8  # Postfix slows a session down from its eleventh error
LIST_WAIT_S = 60.0  # after a refusal, before a list may raise the tolerance: a jail reads its log
PATIENCE_SHARE = 10  # or a tenth of the list's patience, if that is less
AIM_S = 900.0  # in which a list should be done at a shared host; at somebody's own: its patience
ROOM_SHARE = 0.75  # of the tolerance: at so much of it a list that found none left comes back
RETRY_S = 10.0  # where no time can be told at which there is room
TOOK_S = 20.0  # a host that still answers so long after a refusal has taken it
NAME_PROOF_S = 60.0  # an acceptance is proof enough for one random name so long
BAN_AFTER_S = HOUR_S  # refusals and answers within this time make a closed door a ban
PRIOR_SHARE, PRIOR_WEIGHT = 0.05, 20  # of refused recipients, before the host has shown its own
SHARE_LEAST = 0.02
CALM_FROM = 10  # recipients, of which at most one in CALM_SHARE was refused,
CALM_SHARE = 10  # make a list that is asked in whole batches also before the tolerance has grown
COUNTED_MAX = 4_000  # recipients in the estimate; then both counts are halved
REQUEST_PRICE = 0.25
REFUSALS_MAX = 8 * CEILING  # refusals remembered of an hour
CONTESTED_S = 2.0  # until a process that needs no more of a host has given back what it leased


def list_wait_s(patience_s: float) -> float:
    """How long a list with so much patience left waits for more of a host than it takes now."""
    return min(LIST_WAIT_S, patience_s / PATIENCE_SHARE)


class Tolerance:
    """The refusals of one mail host by one egress, and how many more it takes."""

    __slots__ = (
        *(
            "_accounts",
            "_answered_at",
            "_asked",
            "_share_asked",
            "_bans",
            "is_careful",
            "_ceiling",
            "_guard",
        ),
        *("_is_proven", "_proof_at", "_proofs_lacking", "_refused", "_refused_at", "_requested_at"),
        *("_times", "_under_way", "_untaken", "_window"),
        *("has_grown", "hour", "is_shared", "label", "lease", "limits", "changed", "took"),
        "tolerance",
    )

    def __init__(self, limits: RefusalLimits = UNKNOWN, label: str = "") -> None:
        """`label` names the row of the limits, for metrics."""
        self.tolerance = OWN_START
        self._ceiling = CEILING
        self.hour: int | None = None  # refusals an hour, from a row or from a ban
        self.is_shared = False  # addresses of somebody else's domain are accepted here
        self.has_grown = False
        self.took = 0  # most refusals within the window after which it still answered
        self.changed = False  # since the record was taken last
        self.lease: RefusalLease | None = None  # None: all of it belongs to this process
        self.is_careful = False  # its numbers were learned from a ban
        self._times: deque[tuple[float, str]] = deque(maxlen=REFUSALS_MAX)  # of an hour's refusals
        self._window: deque[tuple[float, str]] = deque(maxlen=REFUSALS_MAX)  # of WINDOW_S
        self._untaken: deque[tuple[float, int]] = deque(maxlen=CEILING)  # (time, count)
        self._accounts = AccountsHere()
        self._under_way = dict.fromkeys(Kind, 0)
        self._asked = self._refused = 0
        self._share_asked = HourlyShare()
        self._guard = GuardCount()
        self._answered_at = -inf
        self._refused_at = -inf
        self._proof_at = -inf  # when an address was accepted last,
        self._is_proven = False  # and that was after the latest refusal
        self._proofs_lacking = False  # nobody was ever accepted, and postmaster is refused
        self._requested_at = -inf
        self._bans = Bans()
        self.limits, self.label = UNKNOWN, label
        self.set_limits(limits, label)

    # -- what is known of it -------------------------------------------------------------------

    def set_limits(self, limits: RefusalLimits, label: str) -> None:
        """A name, a greeting or a reply has told more of the host: this row holds from now on."""
        self.limits, self.label = limits, label
        if limits.hour is not None:
            self.hour = limits.hour if self.hour is None else min(self.hour, limits.hour)
        if self.is_careful:
            return
        if limits.ceiling is not None:
            self._ceiling = limits.ceiling
        if limits.tolerance is not None:
            self.tolerance = (
                max(self.tolerance, limits.tolerance) if self.has_grown else limits.tolerance
            )
        self.tolerance = min(self.tolerance, self._ceiling)

    def share_host(self) -> None:
        """An address of somebody else's domain was accepted: many domains share the host."""
        if self.is_shared:
            return
        self.is_shared = self.changed = True
        if self.limits.tolerance is None and not self.is_careful:
            self.tolerance = min(self._ceiling, max(self.tolerance, SHARED_START))

    @property
    def session_max(self) -> int:
        """Refused recipients of one session."""
        if self.limits.session is not None:
            return self.limits.session
        return SESSION_GROWN if self.has_grown or self.limits.tolerance else SESSION_FIRST

    def session_window(self, refused: int) -> int:
        """How many recipients a session with so many refused may have under way."""
        left = self.session_max - refused
        if left <= 0:
            return 0
        if self.limits.session is not None and self.limits.session < SESSION_GROWN:
            return left
        # As many more as it has accepted, while it refuses hardly any.
        accepted = self._asked - self._refused
        return min(SESSION_GROWN, left + accepted * (self._refused * CALM_SHARE <= accepted))

    @property
    def _is_calm(self) -> bool:
        return self._asked >= CALM_FROM and self._refused * CALM_SHARE <= self._asked

    @property
    def share(self) -> float:
        """The share of recipients that it refuses, by a calm estimate."""
        asked = self._asked + PRIOR_WEIGHT
        return max(SHARE_LEAST, (self._refused + PRIOR_WEIGHT * PRIOR_SHARE) / asked)

    # -- may it be asked? ----------------------------------------------------------------------

    def recent(self, now: float) -> int:
        """Refusals within the window, as a guard counts them."""
        return self._guard.recent(now)

    def refused(self, now: float) -> int:
        """Refusals within the hour."""
        self._drop_old(now)
        return len(self._times)

    def room(self, kind: Kind, account: str, now: float, *, queued: int = 0) -> int:
        """How many more recipients of this kind the account may have sent now.

        0: others are under way, or nothing is left (see `is_spent`). A random name of a list
        leaves room to the `queued` rows where the host limits an hour or a share.
        """
        if kind is Kind.CONTROL:
            return 1
        return self._room(kind, account, now, self._price_under_way(now), queued)

    def is_spent(self, kind: Kind, account: str, now: float, *, queued: int = 0) -> bool:
        """Would there be no room even if nothing were under way?"""
        if kind is Kind.CONTROL or self._room(kind, account, now, 0.0, queued) > 0:
            return False
        lease = self.lease
        if lease is None or not lease.is_pending:
            return True
        lease.await_grant()
        if self._room(kind, account, now, 0.0, queued, leased=False) <= 0:
            return True
        # A request does not wait for what other processes hold if the host may take more.
        waits = kind.is_of_list or not lease.is_contested
        return not waits and self.growth(kind, account, now) is not Growth.NOT

    @property
    def takes(self) -> int:
        """Refusals that it takes in ten minutes: at most those of its hour."""
        return self.tolerance if self.hour is None else min(self.tolerance, self.hour)

    @property
    def is_counted(self) -> bool:
        """Does the host limit what it refuses in an hour, or a share of what it is asked?"""
        return self.hour is not None or self.limits.share is not None

    @property
    def is_busy(self) -> bool:
        """Is a recipient under way?"""
        return any(self._under_way.values())

    def has_plenty(self, count: int, now: float) -> bool:
        """May so many be sent, whoever asks? A cheap answer for most batches."""
        if self.is_counted:
            return False
        self._drop_old(now)
        flying = self._price_under_way(now)
        used = self.recent(now) + flying
        price = count * self._list_price(self.tolerance - used)
        if self.lease is not None and (self._is_new or flying + price > self.lease.left):
            return False
        return used + price <= self.tolerance / 4

    def _room(
        self,
        kind: Kind,
        account: str,
        now: float,
        flying: float,
        queued: int = 0,
        leased: bool = True,
    ) -> int:
        self._drop_old(now)
        if now < self._bans.rest_until:
            return 0
        total, own = self._limits_of(kind, account, now)
        used = self.recent(now) + flying
        here = self._accounts.get(account)
        if here is not None:
            own -= here.recent + (here.under_way if flying else 0) * self._least()
        left = min(total - used, own, self._left_of_hour(kind, account, now, flying))
        waiting = 0
        if kind is Kind.NAME and self.is_counted:  # rows of lists that wait need theirs
            waiting = queued
            if self.limits.is_counted:  # one that turned may first have to show that it judges
                waiting = max(queued, self._accounts.rows_waiting(now, HOUR_S + WINDOW_S))
            left -= waiting * self.share
        price = self._price(kind, left)
        room = max(0, int(left / price + 1e-9))
        if self.lease is not None and leased:
            room = min(room, self._room_of_lease(kind, self.lease.left, flying))
        if room and self.limits.share is not None:
            # Most of the rows are accepted, and each of them makes room for others.
            room = max(0, min(room, self._left_of_share(now) - min(waiting, SESSION_GROWN)))
        return room

    @property
    def _is_new(self) -> bool:
        """Has it shown nothing yet? Then each recipient under way uses up one of a lease.

        Each of several processes has a few, and together they must not exceed the tolerance.
        """
        return not (self.has_grown or self._is_calm or self.limits.tolerance is not None)

    def _room_of_lease(self, kind: Kind, left: int, under_way: float) -> int:
        if not self._is_new:
            return max(0, int((left - under_way) / self._price(kind, left) + 1e-9))
        return max(0, left - (sum(self._under_way.values()) if under_way else 0))

    def _limits_of(self, kind: Kind, account: str, now: float) -> tuple[float, float]:
        """Refusals within the window at which this account may send no more: of all, and its own."""
        most = float(self.tolerance)
        if kind is Kind.LONE_NAME:
            most /= 2
        if self._accounts.is_alone(account, now):
            return most, most
        if kind.is_of_list:
            of_lists = 2 if now - self._requested_at < HOUR_S else 4 / 3
            return min(most, self.tolerance / of_lists), self.tolerance / 2
        here = self._accounts.get(account)
        sure = here is None or here.lives_here
        return (most if sure else min(most, self.tolerance * 0.75)), self.tolerance / 2

    def _left_of_hour(self, kind: Kind, account: str, now: float, under_way: float) -> float:
        if self.hour is None:
            return inf
        hour = self.hour / 2 if kind is Kind.LONE_NAME else self.hour
        left = hour - len(self._times) - under_way
        if self._accounts.is_alone(account, now):
            return left
        own = sum(each == account for _, each in self._times)
        return min(left, self.hour / 2 - own)

    def _left_of_share(self, now: float) -> int:
        limit, under_way = self.limits.share or 1.0, sum(self._under_way.values())
        return self._share_asked.left(limit, len(self._times), under_way, now)

    # -- prices --------------------------------------------------------------------------------

    def _least(self) -> float:
        return REQUEST_PRICE if not self._is_strict else 1.0

    @property
    def _is_strict(self) -> bool:
        """Is each recipient under way taken for refused?"""
        return self.is_careful or self.hour is not None

    def _list_price(self, left: float) -> float:
        if self._is_strict:
            return 1.0
        if self.has_grown or self.limits.tolerance is not None:
            return self.share if left >= 2 else max(self.share, 0.1)
        return 1.0 if left < 2 or not self._is_calm else max(2 * self.share, 0.1)

    def _price(self, kind: Kind, left: float) -> float:
        if kind is Kind.LIST:
            return self._list_price(left)
        if kind is Kind.REQUEST:
            return 1.0 if self._is_strict else REQUEST_PRICE
        return 1.0

    def _price_under_way(self, now: float) -> float:
        flying = self._under_way
        lists, requests = flying[Kind.LIST], flying[Kind.REQUEST]
        names = flying[Kind.NAME] + flying[Kind.LONE_NAME]
        if not (lists or requests or names):
            return 0.0
        left = self.tolerance - self.recent(now)
        return lists * self._list_price(left) + requests * self._price(Kind.REQUEST, left) + names

    # -- what happens --------------------------------------------------------------------------

    def send(self, kind: Kind, account: str, now: float, mailbox: str = "") -> None:
        """A recipient of this kind is sent; `mailbox` as it was turned away, if it was."""
        if kind is Kind.CONTROL:
            return
        self._under_way[kind] += 1
        if kind.is_name:
            self._accounts.name_sent(mailbox)
            return
        if kind is Kind.REQUEST:
            self._requested_at = now
        self._accounts.meet(account, now, self._window).send(kind, mailbox)
        if self.lease is not None:
            self.lease.use(now)

    def recall(self, kind: Kind, account: str) -> None:
        """A recipient that was sent gets no answer."""
        if kind is Kind.CONTROL:
            return
        self._under_way[kind] = max(0, self._under_way[kind] - 1)
        here = self._accounts.get(account)
        if here is not None and not kind.is_name:
            here.recall()

    def answered(
        self, kind: Kind, account: str, now: float, *, accepted: bool, refused: bool
    ) -> None:
        """A recipient that was sent was answered; `refused` for good (5yz)."""
        if kind is not Kind.CONTROL:
            self._under_way[kind] = max(0, self._under_way[kind] - 1)
        self._answered_at = now
        while self._untaken and self._untaken[0][0] <= now - TOOK_S:
            count = self._untaken.popleft()[1]
            if count > self.took:
                self.took, self.changed = count, True
        if accepted:
            self._proof_at, self._is_proven = now, True
            self._proofs_lacking = False
        if kind is Kind.CONTROL and not refused:
            return
        if kind is not Kind.CONTROL and not kind.is_name:
            self._asked += 1
            self._refused += refused
            if self._asked >= COUNTED_MAX:
                self._asked, self._refused = self._asked // 2, self._refused // 2
            here = self._accounts.meet(account, now, self._window)
            here.answer(accepted=accepted, refused=refused)
        if self.limits.share is not None:
            self._share_asked.answered(now)
        if refused:
            self._note_refused(account, now)

    def _note_refused(self, account: str, now: float) -> None:
        self._drop_old(now)
        self._refused_at, self._is_proven = now, False
        self._guard.add(now)
        self._times.append((now, account))
        self._window.append((now, account))
        if (here := self._accounts.get(account)) is not None:
            here.count_recent(1)
        self._untaken.append((now, self._guard.count))
        if self.lease is not None:
            self.lease.note(now, account)

    def refused_elsewhere(
        self,
        own: Iterable[tuple[float, str]],
        elsewhere: Iterable[tuple[float, str, int]],
        now: float,
    ) -> None:
        """Other processes have caused these refusals within the hour, this one its `own`."""
        others = [(at, account) for at, account, count in elsewhere for _ in range(count)]
        times = sorted((*own, *others))[-REFUSALS_MAX:]
        self._drop_old(now)
        if not others and len(times) == len(self._times):
            return
        self._times = deque(times, maxlen=REFUSALS_MAX)
        recent = [each for each in times if each[0] > now - WINDOW_S]
        self._window = deque(recent, maxlen=REFUSALS_MAX)
        self._guard.clear()
        for at, _ in times:
            self._guard.add(at)
        if times and times[-1][0] > self._refused_at:
            self._refused_at, self._is_proven = times[-1][0], False
        counts = Counter(account for _, account in recent)
        latest = {account: at for at, account in sorted(others)}
        for account, at in latest.items():
            if account not in self._accounts:
                self._accounts.meet(account, at, self._window)
        self._accounts.recount(counts, latest)

    def withdraw_refusal(self, kind: Kind, account: str) -> None:
        """The latest refusal of the account was no refusal of its recipient."""
        self._guard.withdraw()
        for times in (self._window, self._times):
            for place in range(len(times) - 1, -1, -1):
                if times[place][1] == account:
                    del times[place]
                    break
        if self.lease is not None:
            self.lease.withdraw(account)
        here = self._accounts.get(account)
        if here is not None:
            here.count_recent(-1)
            if not kind.is_name and kind is not Kind.CONTROL:
                here.withdraw_refusal()
                self._refused = max(0, self._refused - 1)

    def _drop_old(self, now: float) -> None:
        window, times = self._window, self._times
        while window and window[0][0] <= now - WINDOW_S:
            _, account = window.popleft()
            if (here := self._accounts.get(account)) is not None:
                here.count_recent(-1)
        while times and times[0][0] <= now - HOUR_S:
            times.popleft()

    # -- growth --------------------------------------------------------------------------------

    def turned_away(self, account: str, now: float, row: str = "", untested: str = "") -> None:
        """A row of a list, or the random name of a domain, found nothing left: it comes back.

        `row`: its mailbox. `untested`: the domain that still costs a random name.
        """
        self._accounts.meet(account, now, self._window).turn_away(now, row, untested)

    def growth(
        self,
        kind: Kind,
        account: str,
        now: float,
        patience_s: float = 0.0,
        *,
        is_provable: bool = True,
    ) -> Growth:
        """May the tolerance be raised for this recipient?

        `patience_s`: what is left of its list's patience; without any a list is as a request.
        `is_provable`: there is an address that may show that the host still judges. Where there
        is none, an account that is alone at the host has its answers at its own risk.
        """
        if now < self._bans.rest_until or self.tolerance >= self._ceiling:
            return Growth.NOT
        if self._is_spent_otherwise(now) or self._awaits_lease(kind, account, now):
            return Growth.NOT
        wait_s = 0.0
        if patience_s > 0:
            wait_s = list_wait_s(patience_s)
            if now < self._refused_at + wait_s or not self._needs_more(account, now, patience_s):
                return Growth.NOT
        elif not self._may_hurry(account, now):
            return Growth.NOT
        proof_from = self._refused_at + wait_s
        if self._is_proven and self._proof_at >= proof_from:
            return Growth.NOW
        if kind is Kind.LONE_NAME:  # not worth a control
            return Growth.NOW if now - self._proof_at < NAME_PROOF_S else Growth.NOT
        here = self._accounts.get(account)
        if not wait_s and (here is None or not here.refused):
            return Growth.NOW  # nothing that it asked was refused here: it is not the cause
        if is_provable and not self._proofs_lacking:
            return Growth.PROVE
        at_own_risk = not wait_s or self._proofs_lacking
        return Growth.NOW if at_own_risk and self._accounts.is_alone(account, now) else Growth.NOT

    def room_for_name(self, kind: Kind, account: str, now: float, patience_s: float = 0.0) -> int:
        """Room for a random name, or a control that is to be refused; growing for it, if it may."""
        room = self.room(kind, account, now)
        growth = self.growth(kind, account, now, patience_s, is_provable=False)
        if room <= 0 and growth is Growth.NOW:
            self.grow()
            room = self.room(kind, account, now)
        return room

    def _awaits_lease(self, kind: Kind, account: str, now: float) -> bool:
        """Is it a lease that lacks, which may come, and not the tolerance?"""
        lease = self.lease
        if lease is None:
            return False
        if lease.left < 1 and (lease.is_asked or lease.is_requesting):
            return True
        if lease.is_denied or lease.is_contested:
            return False
        flying = self._price_under_way(now)
        unleased = self._room(kind, account, now, flying, leased=False)
        return unleased > self._room(kind, account, now, flying)

    def _is_spent_otherwise(self, now: float) -> bool:
        """Is it a limit that does not grow: the hour's, a share's, or that the store of leases is away?"""
        if self.lease is not None and self.lease.is_away:
            return True
        if self.limits.share is not None and self._left_of_share(now) <= 0:
            return True
        return self.hour is not None and self.refused(now) >= self.hour

    def _may_hurry(self, account: str, now: float) -> bool:
        here = self._accounts.get(account)
        return (
            here is None
            or 2 * here.accepted >= here.refused
            or self._accounts.is_alone(account, now)
        )

    def _needs_more(self, account: str, now: float, patience_s: float) -> bool:
        """Is a list to raise it?

        Once at a shared host it does so without need: a ban of its first burst is met by the
        address that is to prove the growth, and not by a list that comes back when it has ended.
        """
        if self.is_shared and not self.has_grown and self.limits.tolerance is None:
            return True
        return not self._is_done_in_time(account, now, patience_s)

    def _is_done_in_time(self, account: str, now: float, patience_s: float) -> bool:
        """Would the rows that wait be done within the aim by what leaves the window?"""
        here = self._accounts.get(account)
        waits = here is not None and here.is_waiting(now)
        waited_s = now - here.waiting_since if here is not None and waits else 0.0
        aim_s = patience_s
        if self.is_shared:
            aim_s = min(patience_s, max(0.0, AIM_S - waited_s))
        windows = aim_s / WINDOW_S
        room = float(self._guard.count if self._guard.last_at <= now + aim_s - GUARDED_S else 0)
        if windows > 1:
            room += self._limits_of(Kind.LIST, account, now)[0] * (windows - 1)
        return self._accounts.refusals_waiting(now, self.share) <= room

    def grow(self) -> None:
        """Raise it: work needs it, and the host still judges."""
        self.tolerance = min(self._ceiling, 2 * self.tolerance)
        self.has_grown = self.changed = True
        if self.lease is not None:
            self.lease.request_more()

    def limit_hour(self, hour: int) -> None:
        """It turned after more refusals in an hour than these."""
        self.hour = hour if self.hour is None else min(self.hour, hour)
        self.changed = True

    def proofs_lack(self) -> None:
        """The host has accepted nobody, and refuses its postmaster: growth can't be proven."""
        self._proofs_lacking = True

    def next_room_s(self, kind: Kind, account: str, now: float, patience_s: float) -> float:
        """After how many seconds the account may find room, at the earliest."""
        self._drop_old(now)
        if now < self._bans.rest_until:
            return self._bans.rest_until - now
        if self._room(kind, account, now, 0.0, leased=False) > 0:
            # What lacks is under way, or leased by other processes: both come back soon.
            is_leased_out = self.lease is not None and self.lease.left < 1
            return CONTESTED_S if is_leased_out else RETRY_S
        waits = []
        if self.recent(now):
            most = max(1.0, self._limits_of(kind, account, now)[0])
            # Until a part of it is free again: the rate falls slowly, and a list comes back whole.
            waits.append(self._guard.slower_s(min(most - 0.5, most * ROOM_SHARE), now))
        if (
            kind.is_of_list
            and self.tolerance < self._ceiling
            and self._needs_more(account, now, patience_s)
        ):
            wait_s = list_wait_s(patience_s)
            grows_s = self._refused_at + wait_s - now
            # Where that time has come, nothing has shown that the host judges: not soon again.
            waits.append(grows_s if grows_s > 0 else wait_s)
        wait_s = min((each for each in waits if each > 0), default=RETRY_S)
        if self.hour is not None and len(self._times) >= self.hour:
            wait_s = max(wait_s, self._times[0][0] + HOUR_S - now)
        if self.limits.share is not None and self._times and self._left_of_share(now) <= 0:
            # What others have accepted meanwhile lowers the share sooner.
            wait_s = max(wait_s, min(WINDOW_S, self._times[0][0] + HOUR_S - now))
        return max(1.0, wait_s)

    # -- bans ----------------------------------------------------------------------------------

    def is_resting(self, now: float) -> bool:
        return now < self._bans.rest_until

    @property
    def rest_until(self) -> float:
        return self._bans.rest_until

    def answered_since(self, at: float) -> bool:
        """Has it answered a recipient since?"""
        return self._answered_at >= at

    def may_have_banned(self, now: float) -> bool:
        """Does it rest after a ban, or has it answered and refused enough within the hour for one?"""
        self._drop_old(now)
        refused = now - self._answered_at < BAN_AFTER_S and len(self._times) >= BAN_LEAST
        return refused or self.is_resting(now)

    def blocked(self, now: float) -> bool:
        """The host does not let us in any more. Is that a ban? Then rest, and remember what it took."""
        if self.is_resting(now) or not self.may_have_banned(now):
            return self.is_resting(now)
        count = self._guard.count
        for at, untaken in self._untaken:
            if at <= self._answered_at - TOOK_S:
                self.took = max(self.took, untaken)
        if count > self.took:
            self.tolerance = self._ceiling = max(LEARNED_LEAST, self.took)
        else:
            self.hour = max(1, len(self._times) // 2)
            self.tolerance = self._ceiling = min(self.tolerance, max(LEARNED_LEAST, self.took))
        self.has_grown, self.is_careful, self.changed = False, True, True
        self._bans.add(now)
        return True

    # -- what is kept --------------------------------------------------------------------------

    def to_record(self, now: float, hour_took: int = 0) -> HostRecord:
        """What is kept for 30 days; `changed` is reset."""
        self.changed = False
        return HostRecord(
            tolerance=self.tolerance if self.has_grown or self.is_careful else 0,
            ceiling=self._ceiling,
            hour=self.hour,
            took=self.took,
            hour_took=hour_took,
            asked=self._asked,
            refused=self._refused,
            careful=self.is_careful,
            shared=self.is_shared,
            label=self.label,
            ban_ages_s=self._bans.ages_s(now),
        )

    def learn(self, record: HostRecord, now: float) -> None:
        """Another process, or an earlier run, has learned this of the host."""
        self.is_shared = self.is_shared or record.shared
        if record.careful:
            self.is_careful = True
            self._ceiling = min(self._ceiling, max(LEARNED_LEAST, record.ceiling))
            self.tolerance = min(max(LEARNED_LEAST, record.tolerance), self._ceiling)
            self.has_grown = False
        elif record.tolerance > self.tolerance and not self.is_careful:
            self.tolerance, self.has_grown = min(record.tolerance, self._ceiling), True
        elif self.is_shared and not self.is_careful and self.limits.tolerance is None:
            self.tolerance = min(self._ceiling, max(self.tolerance, SHARED_START))
        if record.hour is not None:
            self.hour = record.hour if self.hour is None else min(self.hour, record.hour)
        self.took = max(self.took, record.took)
        if record.asked > self._asked:
            self._asked, self._refused = record.asked, record.refused
        self._bans.learn(record.ban_ages_s, now)
