"""Applies what a session's step has changed to its probes, their domains and its host."""

from typing import TYPE_CHECKING

from ..session import effects as made
from ..session.effects import Effect
from ..session.host import IdleSession
from .catchall_tests import repeat_test, settle_awaiting
from .resting import record_failure

if TYPE_CHECKING:
    from .pool import Pool


class RareEffects:
    """Applies the effects of one pool's sessions, but for those of every reply: see Pool.apply()."""

    __slots__ = ("_pool",)

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool

    def apply(self, served: IdleSession, effect: Effect) -> None:
        pool = self._pool
        match effect:
            case made.Busy(reused):
                pool.is_busy(served)
                if reused:
                    pool.dispatcher.observer.session_reused()
            case made.RecipientRefused(at, prompt, for_good):
                pool.recipient_refused(at, prompt=prompt, for_good=for_good)
            case made.Requeued(probe, last):
                (pool.requeue_last if last else pool.requeue)(probe)
            case made.ClockRestarted(probe):
                pool.dispatcher.restart_clock(probe)
            case made.ClockSuspended(probe):
                pool.dispatcher.suspend_clock(probe)
            case made.FailedOver(probe, cause):
                pool.fail_over(probe, cause)
            case made.TestEnded(domain, acceptance, in_time):
                if acceptance is None:
                    repeat_test(pool, domain)
                    return
                pool.test_ended(acceptance, in_time=in_time)
                settle_awaiting(pool, domain, acceptance, in_time=in_time)
            case made.BecameLate(conversation, accepted_before):
                pool.became_late(conversation, accepted_before)
            case made.CaughtUp(conversation, accepted):
                pool.times.caught_up(conversation, pool.now(), accepted=accepted)
                pool.dispatcher.turn.mark_freed(pool)
            case made.GaveWay():
                pool.times.gave_way(pool.now(), pool.opener.opening_s)
            case made.SessionFailed(cause, before_recipients, late, at_recipient):
                pool.session_failed(
                    cause, before_recipients=before_recipients, late=late, at_recipient=at_recipient
                )
            case made.Barren(cause, domain):
                pool.session_barren(cause, domain)
            case made.IdledTooLong():
                pool.close_idle_session()
            case made.Distrusted(renamed=is_renaming):
                pool.times.distrust(renamed=is_renaming)
            case made.Proven(fast_reply_s, renamed):
                pool.replies_proven(fast_reply_s, renamed)
            case made.HostChanged(cause, hour):
                if hour is not None:
                    pool.budget.limit_hour(hour)
                record_failure(pool, cause, [served.address], at_once=True)
            case made.TurnedAway(probe):
                pool.turn_away(probe)
            case made.HostBlocked(words):
                pool.blocked(words)
            case _:
                raise TypeError(effect)
