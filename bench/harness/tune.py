"""Which settings suit this machine: what the trials (mailprobe.bench.harness.trials) say. Pure.

Three things are tried, each with exchanges of several latencies:

connections   one host, more and more connections to it
probes        many hosts, more and more addresses in layer 4
together      one connection to one host, more and more addresses of its domain at a time

The mail hosts are on this machine too, all healthy and all alike: what is found is what
the machine bears, never what somebody else's host does. So connections to one host are
recommended only within a limit that real hosts bear. The last of the three is no setting:
it shows what is gained where addresses of a domain come together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from mailprobe.bench.harness.figures import Figure, Result, Series
from mailprobe.bench.harness.tables import new_table, number
from mailprobe.engine.smtp.session.transaction import REFUSALS_MAX as DEPTH_MAX

HOST_LIMIT = 4  # connections: what hosts bear from a stranger
KNEE = 0.9  # of the best rate: what more would bring is not worth what it costs


@dataclass(frozen=True, slots=True)
class Trial:
    """One value of one setting, tried."""

    value: int
    rate: float  # addresses a second that were told rightly
    wrong: int = 0  # told otherwise: most often too late
    under_way: int = 0  # at most
    cpu_us: float = 0.0  # of ours, for each address
    load_cpu_us: float = 0.0  # of the exchanges
    cpu_share: float = 0.0  # of the time in which a core was busy for us


@dataclass(frozen=True, slots=True)
class Findings:
    """All trials with exchanges of one latency."""

    delay_ms: float
    connections: list[Trial]
    probes: list[Trial]
    together: list[Trial]


@dataclass(frozen=True, slots=True)
class Advice:
    """The settings to use. `together` is none: see above."""

    host_connections: int
    probes_max: int
    together: int
    remarks: tuple[str, ...] = ()


def knee(trials: Sequence[Trial]) -> int:
    """The least value that gives almost the best rate."""
    enough = KNEE * max(trial.rate for trial in trials)
    return min(trial.value for trial in trials if trial.rate >= enough)


def bearable(trials: Sequence[Trial]) -> int | None:
    """The largest value that gives almost the best rate, before any at which one was told wrong.

    More probes than the knee's cost a machine nothing as long as it answers in time, and
    silent hosts hold theirs for three seconds each. None where the least was too many.
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
    """What serves all of the latencies that were tried."""
    borne = [bearable(found.probes) for found in findings]
    least = min(trial.value for trial in findings[0].probes)
    return Advice(
        host_connections=min(host_limit, max(knee(found.connections) for found in findings)),
        probes_max=min(value or least for value in borne),
        together=max(knee(found.together) for found in findings),
        remarks=tuple(_remarks(findings, borne)),
    )


def _remarks(findings: Sequence[Findings], borne: Sequence[int | None]) -> Iterator[str]:
    """What limits the advice."""
    most = max(trial.value for trial in findings[0].probes)
    if None in borne:
        yield (
            "even with the fewest probes some were told wrong: this machine is too busy now; "
            "try again when nothing else runs"
        )
    elif all(value == most for value in borne):
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


# -- for a person ----------------------------------------------------------------------------

SETTINGS_TRIED = {
    "connections": "connections to one host",
    "probes": "probes under way, over many hosts",
    "together": "addresses of a domain together, one connection",
}


def trial_table(trials: Sequence[Trial], asked: str) -> Table:
    """What was tried; the knee is marked, and what the machine did not bear."""
    titles = (
        "addresses a second",
        "under way",
        "CPU µs each",
        "hosts' CPU µs",
        "core busy",
        "told wrong",
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
    """What the settings are not."""
    yield (
        f"Pipelining is no setting: where a host offers it, up to {DEPTH_MAX} recipients are "
        "written at once, fewer where it is slow. How many of a domain come together is yours: "
        f"here {advice.together} were enough. So put addresses of one domain into one request."
    )
    if host_limit > HOST_LIMIT:
        yield (
            f"More than {HOST_LIMIT} connections are for hosts of your own: others refuse whoever "
            "opens many, and a host that refuses is rested, so that all of its addresses are unknown."
        )
    yield from advice.remarks


# -- as any other result ---------------------------------------------------------------------


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
