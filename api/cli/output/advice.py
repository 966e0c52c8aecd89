"""What to do about results that could have been better. Pure."""

from collections.abc import Iterator

from mailprobe.api.cli.output.counts import HOSTS_MAX, ResultCounts
from mailprobe.api.cli.output.lights import ANSWERED, UNREACHED
from mailprobe.engine.verdict import Reason

DECIDED_BY_DNS: tuple[Reason, ...] = ("no_mx", "smtp_blocked")
UNREACHED_MIN = 3  # fewer addresses may be of one dead host


def advice(counts: ResultCounts) -> Iterator[str]:
    """What to do about the rows that could have been known, a line each."""
    hosts, rows = len(counts.refusing_hosts), counts.reasons["blocked_us"]
    if rows:
        more = " or more" if hosts >= HOSTS_MAX else ""
        noun = "host refuses" if hosts == 1 else "hosts refuse"
        yield (
            f"{hosts:,}{more} {noun} this machine ({rows:,} rows): run mailprobe doctor, which "
            "looks for its address on the blocklists"
        )
    if counts.blames["network"]:
        yield (
            f"{counts.blames['network']:,} rows failed on the way to the resolver or the host: run "
            "mailprobe doctor, and clean the list again"
        )
    later = sum(counts.reasons[key] for key in ("greylisted", "rate_limited", "temporary"))
    if later:
        yield (
            f"{later:,} rows are still put off by their hosts: clean the list again in some hours"
        )
    if counts.suggestions:
        yield (
            f"{counts.suggestions:,} rows look mistyped: see the column suggestion, or --suggest "
            "for the corrected addresses"
        )


def dead_end(counts: ResultCounts) -> str | None:
    """A hint if nothing outside could be reached; else None."""
    reasons = counts.reasons
    if any(reasons[key] for key in ANSWERED):
        return None
    if any(reasons[key] for key in UNREACHED):
        return "no mail host answered; run mailprobe doctor to check whether this machine can reach any"
    if reasons["resolver"] and not any(reasons[key] for key in DECIDED_BY_DNS):
        return "no name could be looked up; run mailprobe doctor to see why"
    if reasons["blocked_us"]:
        return "every mail host refuses this machine; run mailprobe doctor to see why"
    return None


def failure_of(counts: ResultCounts, *, is_local: bool) -> str | None:
    """The same where it is a failure of this machine; of a service, what its operator should check."""
    hint = dead_end(counts)
    if hint is None:
        return None
    unreached = sum(counts.reasons[key] for key in UNREACHED)
    if not (counts.blames["us"] or counts.blames["network"] or unreached >= UNREACHED_MIN):
        return None
    if is_local:
        return hint
    return (
        f"{hint.partition(';')[0]} of the service; its operator should run mailprobe doctor there"
    )
