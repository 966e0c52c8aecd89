"""Recommends settings for this machine from the trials of mailprobe.bench.load.trials. Pure.

Three things are tried, each against mail hosts of several latencies:

connections   one host, more and more connections to it
probes        many hosts, more and more addresses in layer 4
together      one connection to one host, more and more addresses of its domain at a time

The mail hosts run on this machine too, and all are healthy. So the trials find what this
machine can handle, not what real hosts allow; advise() therefore limits connections per
host to HOST_LIMIT by default. `together` is not a setting: it shows the gain when addresses
of one domain arrive together.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from mailprobe.engine.smtp.session.recipient_limits import REFUSALS_MAX as DEPTH_MAX

from .figures import Figure, Result, Series
from .tables import new_table, number

HOST_LIMIT = 4  # connections that hosts accept from an unknown client
KNEE = 0.9  # of the best rate: more gain is not worth its cost


class Trial(Struct, frozen=True):
    """The result of one value of one setting."""

    value: int
    rate: float  # correct verdicts a second
    wrong: int = 0  # other verdicts, most often timeouts
    under_way: int = 0  # the most at once
    cpu_us: float = 0.0  # of this process, per address
    load_cpu_us: float = 0.0  # of the mail hosts, per address
    cpu_share: float = 0.0  # processor time of this process / elapsed time


class Findings(Struct, frozen=True):
    """All trials with mail hosts of one latency."""

    delay_ms: float
    connections: list[Trial]
    probes: list[Trial]
    together: list[Trial]


class Advice(Struct, frozen=True):
    """The settings to use. `together` is only a finding: see the module's docstring."""

    host_connections: int
    probes_max: int
    together: int
    remarks: tuple[str, ...] = ()


def knee(trials: Sequence[Trial]) -> int:
    """The least value that reaches KNEE of the best rate."""
    enough = KNEE * max(trial.rate for trial in trials)
    return min(trial.value for trial in trials if trial.rate >= enough)


def probes_handled(trials: Sequence[Trial]) -> int | None:
    """The largest value that reaches KNEE of the best rate and is below any with a wrong verdict.

    It is above the knee: silent hosts hold a probe for three seconds each, and more probes
    cost nothing while verdicts come in time. None if the least value was already too many.
    """
    right: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: trial.value):
        if trial.wrong:
            break
        right.append(trial)
    if not right:
        return None
    enough = KNEE * max(trial.rate for trial in right)
    return max(trial.value for trial in right if trial.rate >= enough)


def advise(findings: Sequence[Findings], host_limit: int = HOST_LIMIT) -> Advice:
    """The settings that work for all latencies that were tried."""
    handled = [probes_handled(found.probes) for found in findings]
    least = min(trial.value for trial in findings[0].probes)
    return Advice(
        host_connections=min(host_limit, max(knee(found.connections) for found in findings)),
        probes_max=min(value or least for value in handled),
        together=max(knee(found.together) for found in findings),
        remarks=tuple(_remarks(findings, handled)),
    )


def _remarks(findings: Sequence[Findings], handled: Sequence[int | None]) -> Iterator[str]:
    """Remarks on how far the advice can be trusted."""
    most = max(trial.value for trial in findings[0].probes)
    if None in handled:
        yield (
            "even with the fewest probes some answers were wrong: this machine is too busy now; "
            "try again when nothing else runs"
        )
    elif all(value == most for value in handled):
        yield f"more than {most:,} probes under way were not tried"
    heavy = [f"{found.delay_ms:g} ms" for found in findings if _load_is_heavy(found)]
    if heavy:
        yield (
            f"at {' and '.join(heavy)} the mail hosts took more of the processor than mailprobe: "
            "where they are elsewhere, it does more a second than is shown here"
        )


def _load_is_heavy(found: Findings) -> bool:
    best = max(found.probes, key=lambda trial: trial.rate)
    return best.load_cpu_us > best.cpu_us


# -- for the terminal ------------------------------------------------------------------------

SETTINGS_TRIED = {
    "connections": "connections to one host",
    "probes": "probes under way, over many hosts",
    "together": "addresses of a domain together, one connection",
}


def trial_table(trials: Sequence[Trial], asked: str) -> Table:
    """The trials of one setting, with marks at the knee and at values that were too many."""
    titles = (
        "addresses a second",
        "under way",
        "CPU µs each",
        "hosts' CPU µs",
        "core busy",
        "wrong verdicts",
    )
    table = new_table(SETTINGS_TRIED[asked], *titles, "")
    table.columns[0].justify = "right"
    table.columns[-1].justify = "left"
    at_knee = knee(trials)
    for trial in trials:
        marks = ["knee"] * (trial.value == at_knee) + ["too many"] * bool(trial.wrong)
        table.add_row(
            f"{trial.value:,}",
            number(round(trial.rate)),
            number(trial.under_way),
            number(round(trial.cpu_us)),
            number(round(trial.load_cpu_us)),
            f"{100 * trial.cpu_share:.0f} %",
            number(trial.wrong),
            Text(", ".join(marks), style="red" if trial.wrong else "green"),
        )
    return table


def settings_lines(advice: Advice) -> Iterator[str]:
    yield "In mailprobe.toml:"
    yield ""
    yield f"host_connections = {advice.host_connections}"
    yield f"max_probes = {advice.probes_max}"
    yield ""
    yield "or in the environment:"
    yield ""
    yield f"MAILPROBE_HOST_CONNECTIONS={advice.host_connections}"
    yield f"MAILPROBE_MAX_PROBES={advice.probes_max}"


def words_on(advice: Advice, host_limit: int) -> Iterator[str]:
    """What the settings do not cover, and the remarks."""
    yield (
        f"Pipelining is not a setting: where a host offers it, up to {DEPTH_MAX} recipients are "
        "written at once, fewer where it is slow. How many of a domain come together is yours: "
        f"here {advice.together} were enough. So put addresses of one domain into one request."
    )
    if host_limit > HOST_LIMIT:
        yield (
            f"More than {HOST_LIMIT} connections are for hosts of your own: others refuse clients that "
            "open many, and a host that refuses is left alone, so that all of its addresses are unknown."
        )
    yield from advice.remarks


# -- as a Result -----------------------------------------------------------------------------


def result_of(findings: Sequence[Findings], advice: Advice) -> Result:
    """The advice as figures, the trials as series."""
    figures = [
        Figure("connections to a host", advice.host_connections, ""),
        Figure("probes under way", advice.probes_max, ""),
        Figure("addresses of a domain together", advice.together, ""),
    ]
    for found in findings:
        best = max(found.probes, key=lambda trial: trial.rate)
        what = f"addresses, {found.delay_ms:g} ms a reply"
        figures.append(
            Figure(what, best.rate, "a second", cpu_us=best.cpu_us, load_cpu_us=best.load_cpu_us)
        )
    return Result(figures, [each for found in findings for each in _series_of(found)])


def _series_of(found: Findings) -> Iterator[Series]:
    for asked, label in SETTINGS_TRIED.items():
        trials: list[Trial] = getattr(found, asked)
        points = [(float(trial.value), trial.rate) for trial in trials]
        yield Series(f"{found.delay_ms:g} ms a reply", label, "addresses", "a second", points)
