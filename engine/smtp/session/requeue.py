"""Requeues or settles the unanswered probes when their batch or session has ended.

Functions over the host and the probes; a session's state is not changed. `elsewhere` holds the
probes that are already queued for another connection because a reply before theirs was late.
"""

from collections.abc import Collection, Sequence, Set

from mailprobe.engine.smtp.probe import OBJECTIONS_MAX, Cause, Probe
from mailprobe.engine.smtp.session.batch import CatchAllTest, PendingProbe, RecipientBatch
from mailprobe.engine.smtp.session.host import SessionHost
from mailprobe.engine.verdict import Outcome


def return_unsent(host: SessionHost, asked: Sequence[PendingProbe]) -> None:
    """These were picked and not sent."""
    for each in reversed(asked):
        if isinstance(each, Probe):
            host.requeue(each)
        else:
            leave_untested(host, each)


def fail_unanswered(
    host: SessionHost,
    unanswered: Collection[PendingProbe],
    batch: RecipientBatch,
    cause: Cause,
    *,
    limited: bool = False,
) -> None:
    """The batch failed: retry, fail over or settle each of its unanswered probes.

    On a reused connection that fails before its first reply, each probe is sent once more on
    another one. Otherwise the failure belongs to the oldest; the others only wait behind it.
    If it is `limited`, no probe caused the failure.
    """
    reused, elsewhere = batch.reused, batch.elsewhere
    head = True
    for probe in unanswered:
        if isinstance(probe, CatchAllTest):
            if head and batch.transaction and not (probe.abandoned or limited):
                host.test_unanswered(probe.domain)
            else:
                leave_untested(host, probe)
        elif probe.settled or probe in elsewhere:
            pass
        elif limited and probe.objections < OBJECTIONS_MAX:
            # Those behind the oldest got no reply; each such session answers someone.
            if head or not batch.transaction:
                probe.count_objection()
            requeue_uncounted(host, probe)
        elif reused and not batch.first and not probe.retried:
            probe.retry()
            host.requeue(probe)
        elif not batch.transaction:
            host.fail_over(probe, cause)
        elif head and (cause.outcome is Outcome.TIMED_OUT or batch.goodbye):
            host.settle(probe, cause.outcome, cause.rule)
        elif head or probe.exhausted:
            host.fail_over(probe, cause)
        else:
            host.requeue(probe)
        head = False


def requeue_rerouted(
    host: SessionHost, unanswered: Collection[PendingProbe], elsewhere: Set[Probe]
) -> None:
    """A late reply was given up: its probe is sent again, after all others."""
    for probe in unanswered:
        if isinstance(probe, CatchAllTest):
            if not probe.abandoned:
                host.test_unanswered(probe.domain)
        elif not probe.settled and probe not in elsewhere:
            probe.reroute()
            host.requeue_last(probe)


def expire_unanswered(host: SessionHost, unanswered: Collection[PendingProbe]) -> None:
    """The probes' deadlines have passed. This says nothing about the host."""
    for probe in unanswered:
        if isinstance(probe, Probe):
            host.settle(probe, Outcome.TIMED_OUT, "clock.overall")
        else:
            leave_untested(host, probe)


def requeue_unanswered(
    host: SessionHost, unanswered: Sequence[PendingProbe], elsewhere: Set[Probe]
) -> None:
    """The permit was revoked, which is not the host's fault: send the probes on another connection."""
    for probe in reversed(unanswered):
        if not isinstance(probe, Probe) or probe.settled or probe in elsewhere:
            continue
        requeue_uncounted(host, probe)


def requeue_doubted(
    host: SessionHost,
    doubted: Sequence[PendingProbe],
    elsewhere: Set[Probe],
    cause: Cause,
    *,
    gave_way: bool,
) -> None:
    """These have replies that were never proven to be theirs: each is sent once more.

    `gave_way`: only a late reply was given up, so this does not use up the one retry.
    """
    for probe in reversed(doubted):
        if isinstance(probe, CatchAllTest):
            leave_untested(host, probe)
        elif probe.settled or probe in elsewhere:
            pass
        elif gave_way:
            requeue_uncounted(host, probe)
        elif probe.unproven:
            host.settle(probe, cause.outcome, cause.rule)
        else:
            probe.doubt()
            requeue_uncounted(host, probe)


def requeue_uncounted(host: SessionHost, probe: Probe) -> None:
    """Send it again, and do not count this conversation: the probe did not cause the failure."""
    probe.undo_try()
    host.requeue(probe)


def leave_untested(host: SessionHost, test: CatchAllTest) -> None:
    if test.abandon():
        host.leave_untested(test.domain)
