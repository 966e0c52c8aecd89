"""Plans the connections of one mail host, and which late session gives up its place. Pure."""

from typing import Literal

import msgspec

from ..wire import Conversation
from .reply_times import FAR_S, LATE_REPLIES, Lateness

BACKLOG_S = 0.5  # work for longer than this is worth one more connection
REROUTE_S = 0.4  # a host without one timely acceptance may just be slow
LATE_BACKLOG_S = 0.1  # at a host that has late replies: work for longer is worth a connection
BESIDE_S = 0.04  # a host that greets sooner is so near that one connection more gains nothing


class StaffingState(msgspec.Struct, frozen=True):
    """What decides whether one more connection is opened, at one moment."""

    waiting: int  # probes
    behind: int  # probes that the scheduler holds back for this host
    width: int  # probes that a session sends at a time
    may_send: bool  # may one of those that wait be sent now, beside what is under way?
    sessions: int
    late: int  # of these
    connections: int  # sessions, and connections being opened
    counted: int  # the same, as the host counts them
    limit: int  # of what the host counts
    proven: int  # most sessions at a time since the host last refused one
    addresses: int
    has_permit: bool  # is one free at an address that has not just failed?
    has_enough: bool  # a connection was refused: open one at a time
    is_hurried: bool  # a greeting is slow
    takes_few: bool  # a connection is good for few recipients
    accepts_several: bool  # a whole batch was answered
    is_careful: bool  # batches are small because of late replies
    batch_s: float  # of a batch
    reply_s: float  # of a recipient
    opening_each_s: float  # see opening_each_s()


Plan = Literal["nothing", "connect", "await a permit"]


def plan(host: StaffingState) -> Plan:
    """What is done for the probes that wait. The next plan sees what came of it."""
    if host.counted >= host.limit:
        # Those that we left, or those of the counterpart, are in the way.
        return "nothing" if host.connections else "await a permit"
    if host.connections and not host.may_send:
        return "nothing"  # each recipient under way may be one of the last that it refuses
    if host.sessions < host.connections:  # one is opening or closing
        # For a distant host only the limit counts; it grows with each greeting. Likewise where
        # a connection is good for few recipients: one of them is always opening or closing.
        freely = host.reply_s >= FAR_S or host.takes_few
        untried = host.connections >= host.proven
        if host.has_enough or (untried and not (freely or host.is_hurried)):
            return "nothing"  # wait for the host's reaction first
    another_address = host.is_hurried and host.connections < host.addresses and not host.sessions
    if host.connections and not (another_address or _is_worth_one_more(host)):
        return "nothing"
    return "connect" if host.has_permit else "await a permit"


def _is_worth_one_more(host: StaffingState) -> bool:
    """Is there more in the queue than the present connections soon complete?"""
    prompt = host.sessions - host.late
    if prompt <= 0:
        return host.waiting > host.width * (host.connections - host.sessions)
    width = host.width
    if host.reply_s >= FAR_S and not (host.accepts_several or host.late):
        width = 1  # opening takes long, and any of the first batch may be late
    backlog = host.waiting + host.behind
    work_s = backlog / width * host.batch_s + backlog * host.opening_each_s
    return work_s > backlog_s(is_careful=host.is_careful) * prompt


def backlog_s(*, is_careful: bool) -> float:
    """Work for longer than this is worth one more connection."""
    return LATE_BACKLOG_S if is_careful else BACKLOG_S


def opening_each_s(greeted_s: float, opening_s: float, session_recipients: float) -> float:
    """The share of each address in the opening of its connection.

    It matters where a connection is good for few recipients: the host tolerates few refusals, or
    most of the domains are still to be tested.
    """
    return (greeted_s if greeted_s < BESIDE_S else opening_s) / session_recipients


def gives_way(
    late: Lateness,
    conversation: Conversation,
    now: float,
    *,
    connections: int,
    reply_s: float,
    work_s: float,
    opening_s: float,
) -> bool:
    """Do others need the place of this late session, for longer than opening a connection takes?

    `work_s`: what waits takes so long on one connection.
    """
    prompt = connections - len(late.sessions)
    if late.slow_for_all:  # perhaps: give up one at a time
        patience_s = max(REROUTE_S, 2 * LATE_REPLIES * reply_s)
        since = min(late.sessions.get(conversation, now), late.rerouted_at)
        return prompt <= 0 and now - since >= patience_s
    return prompt <= 0 or work_s > prompt * opening_s
