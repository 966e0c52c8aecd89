"""What the pool changes when a reply is late, comes after all, or is given up."""

from typing import TYPE_CHECKING

from mailprobe.engine.smtp.connection import SmtpConnection

if TYPE_CHECKING:
    from mailprobe.engine.smtp.pool.pool import Pool


def record_rerouted(pool: "Pool") -> None:
    """A late reply was given up: it takes longer than that."""
    late = pool.lateness
    late.rerouted_at = pool.now()
    at_least_s = pool.reroute_s + pool.opener.opening_s
    learn_lateness(pool, max(at_least_s, late.late_reply_s or 0.0))


def learn_lateness(pool: "Pool", late_reply_s: float) -> None:
    pool.lateness.late_reply_s = late_reply_s
    pool.late_s = pool.lateness.late_after_s(pool.pace)


def record_late(pool: "Pool", connection: SmtpConnection, *, accepted: int) -> None:
    """The oldest recipient of the session is late: open another connection if needed.

    `accepted` recipients before it were accepted in time, which is not proven yet.
    """
    pool.lateness.session_late(connection, pool.now() - pool.late_s, accepted)
    gap_s = pool.pace.gap_s if pool.accepted_several else 0.0
    pool.depth, pool.prompt = pool.lateness.tarpit_depth(pool.pace, gap_s), 0
    pool.slow_to_answer = pool.slow = True
    pool.staff()
    if pool.lateness.late_reply_s is None:
        learn_lateness(pool, pool.late_s)
    pool.dispatcher.capacity_freed(pool)


def record_prompt(pool: "Pool", connection: SmtpConnection, *, accepted: bool) -> None:
    """The late reply has come; `accepted` if it was positive."""
    since = pool.lateness.sessions.pop(connection, None)
    if since is not None:
        late_reply_s = pool.now() - since
        if accepted:
            pool.lateness.accepted_late(late_reply_s)
        learn_lateness(pool, late_reply_s)
    pool.dispatcher.capacity_freed(pool)
