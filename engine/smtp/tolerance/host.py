"""The number of refused recipients that one mail host takes: the policy of this package. Pure."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..leases.ledger import HostRecord
from .accounts import AccountsHere, WaitingHosts
from .budget import RefusalBudget
from .limits import GUARDED_S, HOUR_S, UNKNOWN, WINDOW_S, Growth, Kind, RefusalLimits

if TYPE_CHECKING:
    from ..leases.refusal_leases import RefusalLease

BAN_LEAST = 3  # refusals within an hour: no guard that we know bans at fewer (MDaemon at the third)
LIST_WAIT_S = 60.0  # after a refusal, before a list may raise the tolerance: a jail reads its log
PATIENCE_SHARE = 10  # or a tenth of the list's patience, if that is less
AIM_S = 900.0  # in which a list should be done at a shared host; elsewhere within its patience
ROOM_SHARE = 0.75  # of the tolerance: with so much free, a list that found no room comes back
RETRY_S = 10.0  # if it is unknown when there is room
NAME_PROOF_S = 60.0  # an acceptance is proof enough for one random name so long
BAN_AFTER_S = HOUR_S  # after refusals and answers within it, a refused connection is a ban
CONTESTED_S = 2.0  # until a process that needs no more of a host has given back what it leased


def list_wait_s(patience_s: float) -> float:
    """How long a list with so much patience left waits for more of a host than it takes now."""
    return min(LIST_WAIT_S, patience_s / PATIENCE_SHARE)


class Tolerance:
    """The refusals that one mail host takes by one egress: when there may be more, and bans.

    What it takes is `known`; what of that is left, and for whom, is its `budget`.
    """

    __slots__ = ("budget", "known")

    def __init__(
        self, row: RefusalLimits = UNKNOWN, label: str = "", budget: RefusalBudget | None = None
    ) -> None:
        """`label` names the row of the limits, for metrics."""
        self.budget = budget or RefusalBudget(AccountsHere(WaitingHosts()))
        self.known = self.budget.known
        self.known.set_row(row, label)

    # -- what happens --------------------------------------------------------------------------

    def refused_elsewhere(
        self,
        own: Iterable[tuple[float, str]],
        elsewhere: Iterable[tuple[float, str, int]],
        now: float,
    ) -> None:
        """Other processes have caused these refusals within the hour, this one its `own`."""
        refusals = self.budget.refusals
        others = [(at, account) for at, account, count in elsewhere for _ in range(count)]
        times = [*own, *others]
        if not others and len(times) == refusals.in_hour(now):
            return
        latest_at = refusals.latest_at
        refusals.replace(times, now)
        if refusals.latest_at > latest_at:
            self.known.doubt()
        for at, account in sorted(others):
            self.budget.accounts.seen_elsewhere(account, at)

    def turned_away(self, account: str, now: float, row: str = "", untested: str = "") -> None:
        """A row of a list, or the random name of a domain, found nothing left: it comes back.

        `row`: its mailbox. `untested`: the domain that still costs a random name.
        """
        self.budget.accounts.meet(account, now).waiting.add(now, row, untested)

    # -- growth --------------------------------------------------------------------------------

    def is_spent(self, kind: Kind, account: str, now: float, *, queued: int = 0) -> bool:
        """Would there be no room even if nothing were under way?"""
        budget, lease = self.budget, self.budget.lease
        if kind is Kind.CONTROL or budget.room_beside(0.0, kind, account, now, queued=queued) > 0:
            return False
        if lease is None or not lease.is_pending:
            return True
        lease.await_grant()
        if budget.room_beside(0.0, kind, account, now, queued=queued, leased=False) <= 0:
            return True
        # A request does not wait for what other processes hold if the host may take more.
        waits = kind.is_of_list or not lease.standing.is_contested
        return not waits and self.growth(kind, account, now) is not Growth.NOT

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
        budget = self.budget
        if (
            self.is_resting(now)
            or (kind is Kind.LIST and budget.rate.rest.active(now))
            or self.known.tolerance >= self.known.ceiling
            or budget.is_limited_otherwise(now)
            or budget.awaits_lease(kind, account, now)
        ):
            return Growth.NOT
        wait_s = 0.0
        refused_at = budget.refusals.latest_at
        if patience_s > 0:
            wait_s = list_wait_s(patience_s)
            if now < refused_at + wait_s or not self._needs_more(account, now, patience_s):
                return Growth.NOT
        elif not budget.accounts.may_hurry(account, now):
            return Growth.NOT
        if self.known.is_proven and self.known.proof_at >= refused_at + wait_s:
            return Growth.NOW
        if kind is Kind.LONE_NAME:  # not worth a control
            return Growth.NOW if now - self.known.proof_at < NAME_PROOF_S else Growth.NOT
        here = budget.accounts.get(account)
        if not wait_s and (here is None or not here.refused):
            return Growth.NOW  # no recipient of the account was refused here
        if is_provable and not self.known.proofs_lacking:
            return Growth.PROVE
        at_own_risk = not wait_s or self.known.proofs_lacking
        return Growth.NOW if at_own_risk and budget.accounts.is_alone(account, now) else Growth.NOT

    def grow(self) -> None:
        """Raise it: work needs it, and the host still judges."""
        self.known.grow()
        if self.budget.lease is not None:
            self.budget.lease.request_more()

    def room_for_name(self, kind: Kind, account: str, now: float, patience_s: float = 0.0) -> int:
        """Room for a random name, or a control that is to be refused; growing for it, if it may."""
        room = self.budget.room(kind, account, now)
        growth = self.growth(kind, account, now, patience_s, is_provable=False)
        if room <= 0 and growth is Growth.NOW:
            self.grow()
            room = self.budget.room(kind, account, now)
        return room

    def _needs_more(self, account: str, now: float, patience_s: float) -> bool:
        """Must a list raise it?

        Once at a shared host it does so without need: a ban because of its first burst is noticed
        by the address that is to prove the growth, before the list comes back.
        """
        is_first = self.known.is_shared and not self.known.is_tried
        return is_first or not self._is_done_in_time(account, now, patience_s)

    def _is_done_in_time(self, account: str, now: float, patience_s: float) -> bool:
        """Would the waiting rows be done within the aim without any growth?"""
        budget, aim_s = self.budget, patience_s
        if self.known.is_shared:
            here = budget.accounts.get(account)
            waited_s = here.waiting.waited_s(now) if here is not None else 0.0
            aim_s = min(patience_s, max(0.0, AIM_S - waited_s))
        windows, guard = aim_s / WINDOW_S, budget.refusals.guard
        room = float(guard.count if guard.last_at <= now + aim_s - GUARDED_S else 0)
        if windows > 1:
            room += budget.limits_of(Kind.LIST, account, now)[0] * (windows - 1)
        return budget.accounts.refusals_waiting(now, budget.share) <= room

    def next_room_s(self, kind: Kind, account: str, now: float, patience_s: float) -> float:
        """After how many seconds the account may find room, at the earliest."""
        budget, refusals = self.budget, self.budget.refusals
        rest_until = budget.bans.rest_until
        if kind is Kind.LIST:
            rest_until = max(rest_until, budget.rate.rest.until)
        if now < rest_until:
            return rest_until - now
        if budget.room_beside(0.0, kind, account, now, leased=False) > 0:
            # The rest is under way, or leased by other processes: both come back soon.
            is_leased_out = budget.lease is not None and budget.lease.left < 1
            return CONTESTED_S if is_leased_out else RETRY_S
        waits = []
        if refusals.guard.recent(now):
            most = max(1.0, budget.limits_of(kind, account, now)[0])
            # Until a part of it is free again: the rate falls slowly, and a list comes back whole.
            waits.append(refusals.guard.slower_s(min(most - 0.5, most * ROOM_SHARE), now))
        may_grow = kind.is_of_list and self.known.tolerance < self.known.ceiling
        if may_grow and self._needs_more(account, now, patience_s):
            wait_s = list_wait_s(patience_s)
            grows_s = refusals.latest_at + wait_s - now
            # If that time has come, no proof that the host judges was found: try it less often.
            waits.append(grows_s if grows_s > 0 else wait_s)
        wait_s = min((each for each in waits if each > 0), default=RETRY_S)
        hour_ends_s = refusals.hour_ends_s(now)
        if self.known.hour is not None and refusals.in_hour(now) >= self.known.hour:
            wait_s = max(wait_s, hour_ends_s)
        if budget.is_share_spent(now):
            # What others have accepted meanwhile lowers the share sooner.
            wait_s = max(wait_s, min(WINDOW_S, hour_ends_s))
        return max(1.0, wait_s)

    # -- bans ----------------------------------------------------------------------------------

    def is_resting(self, now: float) -> bool:
        return now < self.budget.bans.rest_until

    def may_have_banned(self, now: float) -> bool:
        """Has it answered and refused enough within the hour for a ban, or not answered since one?

        A refusal is an answer, also one to another process or to an earlier run.
        """
        rest_until, refusals = self.budget.bans.rest_until, self.budget.refusals
        answered_at = max(self.known.answered_at, refusals.latest_at)
        return (answered_at < rest_until and now - rest_until < BAN_AFTER_S) or (
            now - answered_at < BAN_AFTER_S and refusals.in_hour(now) >= BAN_LEAST
        )

    def blocked(self, now: float) -> bool:
        """The host does not let us in any more. Is that a ban? Then rest, and remember what it took."""
        refusals = self.budget.refusals
        if not self.is_resting(now) and self.may_have_banned(now):
            if refusals.in_hour(now) >= BAN_LEAST:  # else an earlier ban lasts
                self.known.note_ban(refusals.guard.count, refusals.in_hour(now))
            self.budget.bans.add(now)
        return self.is_resting(now)

    # -- what processes share --------------------------------------------------------------------

    def lease_by(self, lease: "RefusalLease") -> None:
        """Other processes use the host, too: this lease is our share of it."""
        self.budget.lease_by(lease)

    @property
    def is_busy(self) -> bool:
        return self.budget.is_busy

    def to_record(self, now: float, hour_took: int = 0) -> HostRecord:
        """Return the record that is kept for 30 days."""
        known, budget = self.known, self.budget
        known.report()
        return HostRecord(
            tolerance=known.tolerance if known.has_grown or known.is_careful else 0,
            ceiling=known.ceiling,
            hour=known.hour,
            took=known.took,
            hour_took=hour_took,
            asked=budget.asked,
            refused=budget.refused,
            careful=known.is_careful,
            shared=known.is_shared,
            label=known.label,
            ban_ages_s=budget.bans.ages_s(now),
        )

    def learn(self, record: HostRecord, now: float) -> None:
        """Another process, or an earlier run, has learned this of the host."""
        self.known.learn(record)
        self.budget.learn(record.asked, record.refused)
        self.budget.bans.learn(record.ban_ages_s, now)
