"""Advice about results that could have been better. Pure."""

from collections.abc import Iterator

from mailprobe.engine.verdict import Reason

from ...results.counts import FAILED_HOSTS_MIN, HOSTS_MAX, ResultCounts
from ...results.lights import ANSWERED, UNREACHED
from .summary import counted

DECIDED_BY_DNS: tuple[Reason, ...] = ("no_mx", "smtp_blocked", "bounced", "not_asked")


def advice(counts: ResultCounts) -> Iterator[str]:
    """What to do about the rows that could have been known, a line each."""
    if (hint := dead_end(counts)) is not None and not _is_failure(counts):
        yield hint
    hosts, rows = len(counts.refusing_hosts), counts.reasons["blocked_us"]
    if rows:
        more = " or more" if hosts >= HOSTS_MAX else ""
        noun = "host refuses" if hosts == 1 else "hosts refuse"
        yield (
            f"{hosts:,}{more} {noun} this machine ({counted(rows, 'row', 'rows')}): run mailprobe doctor, which "
            "looks for its address on the blocklists"
        )
    if counts.blames["network"]:
        yield (
            f"{counted(counts.blames['network'], 'row', 'rows')} failed on the way to the resolver "
            "or the host: run mailprobe doctor, and clean the list again"
        )
    later = sum(counts.reasons[key] for key in ("greylisted", "rate_limited", "temporary"))
    if later:
        one, more = "row is still put off by its host", "rows are still put off by their hosts"
        yield f"{counted(later, one, more)}: clean the list again in some hours"
    if counts.suggestions:
        yield (
            f"{counted(counts.suggestions, 'row looks', 'rows look')} mistyped: see the column "
            "suggestion, or --suggest for the corrected addresses"
        )


def dead_end(counts: ResultCounts, *, reached: bool | None = None) -> str | None:
    """A hint if no mail host answered about any address; else None.

    `reached`: a mail host has said something; None if that is not known.
    """
    reasons = counts.reasons
    if any(reasons[key] for key in ANSWERED):
        return None
    if any(reasons[key] for key in UNREACHED):
        if reached:
            return None
        what = "no address got an answer from its mail host"
        if reached is not None:
            what = "no mail host answered"
        return f"{what}; run mailprobe doctor to check whether this machine can reach any"
    if reasons["resolver"] and not any(reasons[key] for key in DECIDED_BY_DNS):
        return "no name could be looked up; run mailprobe doctor to see why"
    if reasons["blocked_us"]:
        return "every mail host refuses this machine; run mailprobe doctor to see why"
    return None


def _is_failure(counts: ResultCounts) -> bool:
    """Whether a dead end is this machine's failure: at many hosts, or at the first step.

    A few hosts may be dead, or have a reason of their own to refuse this machine.
    """
    reasons = counts.reasons
    has_met_hosts = reasons["blocked_us"] or any(reasons[key] for key in UNREACHED)
    return not has_met_hosts or len(counts.failed_hosts) >= FAILED_HOSTS_MIN


def failure_of(counts: ResultCounts, *, is_local: bool) -> str | None:
    """The hint where it is a failure of this machine; of a service, what its operator should check."""
    hint = dead_end(counts)
    if hint is None or not _is_failure(counts):
        return None
    if is_local:
        return hint
    return f"{hint.partition(';')[0]} through the service; its operator should run mailprobe doctor there"
