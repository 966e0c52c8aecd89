"""The report on a cleaned list: one HTML file with inline SVG, no script, nothing from outside.

The template beside this file makes the page. Text from outside (a domain, a mail host, an address)
is escaped, and the page's policy lets a browser load and run nothing. Counts by domain and
provider are bounded.
"""

from collections import Counter
from pathlib import Path

from msgspec import Struct, field

from mailprobe.engine.smtp.operators import MailOperators, load_operators
from mailprobe.engine.verdict import Light, light_of

from ...results.advice import ANSWERS
from ...results.counts import duration
from ...results.lights import LIGHT_COLOURS, STATUS_COLOURS, WORDS
from ...results.row_result import RowResult, domain_of, suggested
from ...terminal import plain
from .advice import advice
from .summary import Summary, cell_notes, counted

NAMES_MAX = 50_000  # domains, and providers; what comes after them is counted as OTHERS
OTHERS = "all others"
SHOWN_MAX = 20  # rows of a table
SUGGESTIONS_MAX = 200
WORST_ROWS_MIN = 5  # of a domain, before it is called bad


class LightCounts(Struct):
    """The rows of one domain or provider by light."""

    lights: Counter[Light] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        return self.lights.total()

    @property
    def drop_share(self) -> float:
        return self.lights["RED_LIGHT"] / self.rows


class ReportCounts(Struct):
    """What a report has beyond the summary: rows by domain and by provider, and suggestions."""

    domains: dict[str, LightCounts] = field(default_factory=dict)
    providers: dict[str, LightCounts] = field(default_factory=dict)
    suggestions: dict[str, str] = field(default_factory=dict)  # the first SUGGESTIONS_MAX
    confidences: Counter[float] = field(default_factory=Counter)  # of rows called deliverable
    _operators: MailOperators = field(default_factory=load_operators)

    def count(self, result: RowResult, by: int = 1) -> None:
        """Add the result of so many rows."""
        if result.status == "deliverable":
            self.confidences[result.confidence] += by
        correction = suggested(result)
        if correction is not None and len(self.suggestions) < SUGGESTIONS_MAX:
            self.suggestions[result.email] = correction
        if result.reason == "syntax":
            return
        light = light_of(result)
        _entry(self.domains, domain_of(result.email)).lights[light] += by
        if result.mx_host is not None:
            _entry(self.providers, self._provider(result.mx_host)).lights[light] += by

    def _provider(self, host: str) -> str:
        """The operator's name, or the end of its host's name."""
        operator = self._operators.find(host)
        return operator.id if operator is not None else ".".join(host.split(".")[-2:])


def _entry(entries: dict[str, LightCounts], name: str) -> LightCounts:
    if name not in entries and len(entries) >= NAMES_MAX:
        name = OTHERS
    return entries.setdefault(name, LightCounts())


def report_page(summary: Summary, counts: ReportCounts, list_name: str) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # 40 ms, for this alone

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html").render(
        list_name=list_name,
        summary=summary,
        found=summary.counts,
        noted=cell_notes(summary),
        took=duration(summary.took_s),
        advice=advice(summary.counts),
        providers=_largest(counts.providers),
        domains=_largest(counts.domains),
        worst=_worst(counts.domains),
        worst_rows_min=WORST_ROWS_MIN,
        suggestions=counts.suggestions,
        confidences=sorted(counts.confidences.items(), reverse=True),
        answers=ANSWERS,
        light_colours=LIGHT_COLOURS,
        status_colours=STATUS_COLOURS,
        words=WORDS,
        counted=counted,
    )


def _printable(value: object) -> object:
    """A value as the page shows it; the result of a macro is markup already."""
    return value if hasattr(value, "__html__") else plain(str(value))


def _largest(entries: dict[str, LightCounts]) -> list[tuple[str, LightCounts]]:
    return sorted(entries.items(), key=lambda entry: (-entry[1].rows, entry[0]))[:SHOWN_MAX]


def _worst(domains: dict[str, LightCounts]) -> list[tuple[str, LightCounts]]:
    """The domains with the largest share of rows to drop."""
    bad = [
        (name, each)
        for name, each in domains.items()
        if each.rows >= WORST_ROWS_MIN and each.lights["RED_LIGHT"]
    ]
    return sorted(bad, key=lambda entry: (-entry[1].drop_share, entry[0]))[:SHOWN_MAX]
