"""The number of connections for one mail host, and late sessions that give up their place."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..session.recipient_limits import REFUSALS_MAX
from ..throttle import NEVER
from ..wire import Conversation
from .reply_times import FAR_S, LATE_REPLIES
from .resting import AVOID_S

if TYPE_CHECKING:
    from .pool import Pool

BACKLOG_S = 0.5  # work for longer than this is worth one more connection
REROUTE_S = 0.4  # a host without one timely acceptance may just be slow
LATE_BACKLOG_S = 0.1  # at a host that has late replies: work for longer is worth a connection


def needs_connection(pool: "Pool", hurried: bool) -> bool:
    if pool.connections.counted >= connections_max(pool):
        if not pool.connections.now:
            request_permits(pool)  # those that we left, or those of the counterpart, are in the way
        return False
    if pool.connections.now and not pool.has_budget():
        return False  # each recipient under way may be one of the last that it refuses
    if len(pool.sessions) < pool.connections.now:  # one is opening or closing
        if pool.opener.has_enough:
            return False
        # For a distant host only the limit counts; it grows with each greeting. Likewise where
        # a connection is good for few recipients: one of them is always opening or closing.
        freely = (
            pool.times.pace.reply_s >= FAR_S or pool.terms.limits.per_connection <= REFUSALS_MAX
        )
        untried = pool.connections.now >= pool.connections.proven
        if untried and not (freely or hurried):
            return False  # wait for the host's reaction first
    another_address = hurried and pool.connections.now < len(pool.addresses) and not pool.sessions
    wanted = pool.connections.now == 0 or another_address or worth_one_more(pool)
    return wanted and free_address(pool)


def connections_max(pool: "Pool") -> int:
    """How many connections may be open at the moment, with those that we left."""
    limit = pool.connections.limit(len(pool.times.late.sessions), pool.now())
    if pool.counterpart is None:
        return limit
    of_host = pool.dispatcher.settings.host_connections
    return min(limit, of_host - pool.counterpart.connections.counted)


def backlog_s(pool: "Pool") -> float:
    return BACKLOG_S if pool.times.depth == REFUSALS_MAX else LATE_BACKLOG_S


def worth_one_more(pool: "Pool") -> bool:
    """Is there more in the queue than the present connections soon complete?"""
    prompt = len(pool.sessions) - len(pool.times.late.sessions)
    if prompt <= 0:
        opening = pool.connections.now - len(pool.sessions)
        return len(pool.waiting) > width_of(pool) * opening
    width = width_of(pool)
    if pool.times.pace.reply_s >= FAR_S and not (
        pool.times.accepted_several or pool.times.late.sessions
    ):
        width = 1  # opening takes long, and any of the first batch may be late
    backlog = len(pool.waiting) + pool.behind
    rounds_s = backlog / width * (pool.times.pace.batch_s or 0.0)
    return rounds_s + backlog * opening_each_s(pool) > backlog_s(pool) * prompt


BESIDE_S = 0.04  # a host that greets sooner is so near that one connection more gains nothing


def opening_each_s(pool: "Pool") -> float:
    """The share of each address in the opening of its connection.

    It matters where a connection is good for few recipients: the host tolerates few refusals, or
    most of the domains are still to be tested. A slow host gets no more connections for it.
    """
    if pool.times.slow or pool.patient:
        return 0.0
    opener = pool.opener
    opening_s = opener.greeted_s if opener.greeted_s < BESIDE_S else opener.opening_s
    return opening_s / pool.connections.session_recipients


def width_of(pool: "Pool") -> int:
    """How many probes a session sends at a time."""
    return 1 if pool.pipelines is False else pool.window()


def free_address(pool: "Pool") -> bool:
    """Is a permit free at an address? If not, queue for one at each of them."""
    if any(map(pool.dispatcher.permits.available, _good_addresses(pool))):
        return True
    request_permits(pool)
    return False


def request_permits(pool: "Pool") -> None:
    """Queue for a permit of each address."""
    for address in _good_addresses(pool):
        pool.dispatcher.permits.set_demand(address, pool)


def _good_addresses(pool: "Pool") -> Sequence[str]:
    """Those that have not just failed, or all of them."""
    now = pool.now()
    good = [
        address
        for address in pool.addresses
        if now - pool.opener.failed_at.get(address, NEVER) >= AVOID_S
    ]
    return good or pool.addresses


def gives_way(pool: "Pool", conversation: Conversation) -> bool:
    """Do other probes need the place of this late session, for longer than opening takes?

    Probes whose own reply was late before do not count.
    """
    if pool.times.late.sleeps_on or not pool.any_waiting():
        return False
    if pool.connections.counted < connections_max(pool) and any(
        map(pool.dispatcher.permits.available, pool.addresses)
    ):
        return False  # one more can be opened beside it
    if all(pool.session_ended(each) or each.rerouted for each in pool.waiting.heads()):
        return False
    prompt = pool.connections.now - len(pool.times.late.sessions)
    if pool.times.late.slow_for_all:  # perhaps: give up one at a time
        now, patience_s = pool.now(), max(REROUTE_S, 2 * LATE_REPLIES * pool.times.pace.reply_s)
        since = min(pool.times.late.sessions.get(conversation, now), pool.times.late.rerouted_at)
        return prompt <= 0 and now - since >= patience_s
    if prompt <= 0:
        return True
    work_s = len(pool.waiting) * (pool.times.pace.batch_s or 0.0)
    return work_s > prompt * pool.opener.opening_s
