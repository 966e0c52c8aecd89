"""The report on a cleaned list: one HTML file with inline SVG, no script, nothing from outside.

Text from outside (a domain, a mail host, an address) is escaped, and the page's policy
lets a browser load and run nothing. Counts by domain and provider are bounded.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from msgspec import Struct, field

from mailprobe.engine.smtp.operators import MailOperators, load_operators
from mailprobe.engine.verdict import Light, light_of

from ...results.advice import ANSWERS
from ...results.counts import ResultCounts, duration
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
BAR_WIDTH, BAR_HEIGHT = 240, 12

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d8dee4;
  --green: #1a7f37; --yellow: #bf8700; --red: #cf222e; --grey: #6e7781; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d;
  --green: #3fb950; --yellow: #d29922; --red: #f85149; --grey: #8b949e; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 2rem; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { display: block; max-width: 100%; }
.green { fill: var(--green); } .yellow { fill: var(--yellow); }
.red { fill: var(--red); } .grey { fill: var(--grey); }
.badge { display: inline-block; padding: 0 8px; border-radius: 10px; font-size: 13px;
  line-height: 20px; font-weight: 600; white-space: nowrap; border: 1px solid currentcolor; }
.badge.green { color: var(--green); } .badge.yellow { color: var(--yellow); }
.badge.red { color: var(--red); } .badge.grey { color: var(--grey); }
.badge.invalid { border-style: dashed; }
""".strip()


class LightCounts(Struct):
    """The rows of one domain or provider by light."""

    lights: Counter[Light] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        return self.lights.total()


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
        domain = domain_of(result.email)
        _entry(self.domains, domain).lights[light] += by
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
    return "\n".join(_page(summary, counts, list_name)) + "\n"


def _page(summary: Summary, counts: ReportCounts, list_name: str) -> Iterator[str]:
    found = summary.counts
    name = _text(list_name)
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width">'
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield f"<title>{name}: report</title><style>{STYLE}</style></head><body>"
    yield f"<h1>{name}</h1>"
    noted = cell_notes(summary)
    where = f" in {escape(' and '.join(summary.columns))}" if summary.columns else ""
    yield (
        f"<p>{counted(summary.rows, 'row', 'rows')}{noted}, "
        f"{counted(summary.addresses, 'different address', 'different addresses')}{where}, "
        f"cleaned in {duration(summary.took_s)}.</p>"
    )
    for line in advice(found):
        yield f"<p>{_text(line)}</p>"
    yield from _verdicts(found)
    yield from _shares("Status", found.statuses.most_common(), found.done, STATUS_COLOURS)
    words = [(f"{key}: {WORDS[key]}", number) for key, number in found.reasons.most_common()]
    yield from _shares("Reason", words, found.done, {})
    yield from _by_light("Provider", counts.providers.items())
    yield from _by_light("Domain", counts.domains.items())
    yield from _worst(counts.domains)
    yield from _suggestions(counts.suggestions, found.suggestions)
    yield from _certainty(found, counts)
    yield "</body></html>"


def _verdicts(found: ResultCounts) -> Iterator[str]:
    yield f"<h2>Verdict</h2><table>{_head('Verdict', 'rows', 'share', '')}"
    for light, answer in ANSWERS.items():
        count = found.lights[light]
        bar = _bar([(count, LIGHT_COLOURS[light])], found.done)
        name = f"<b>{answer.word}</b> {answer.sentence}"
        yield _row_of(name, f"{count:,}", _share(count, found.done), bar)
    yield "</table>"


def _shares(
    title: str, rows: Sequence[tuple[str, int]], total: int, colours: Mapping[str, str]
) -> Iterator[str]:
    yield f"<h2>{title}</h2><table>{_head(title, 'rows', 'share', '')}"
    for name, number in rows:
        if number:
            colour = colours.get(name, "grey")
            words = _badge(name, colour) if name in colours else _text(name)
            bar = _bar([(number, colour)], total)
            yield _row_of(words, f"{number:,}", _share(number, total), bar)
    yield "</table>"


def _by_light(title: str, entries: Iterable[tuple[str, LightCounts]]) -> Iterator[str]:
    """The largest, each with its lights as a bar."""
    largest = sorted(entries, key=lambda entry: (-entry[1].rows, entry[0]))[:SHOWN_MAX]
    if not largest:
        return
    yield f"<h2>{title}</h2><table>{_head(title, 'rows', *(answer.word.lower() for answer in ANSWERS.values()), '')}"
    for name, each in largest:
        numbers = [each.lights[light] for light in LIGHT_COLOURS]
        bar = _bar(list(zip(numbers, ("green", "yellow", "red"), strict=True)), each.rows)
        yield _row(name, f"{each.rows:,}", *(f"{number:,}" for number in numbers), bar)
    yield "</table>"


def _worst(domains: dict[str, LightCounts]) -> Iterator[str]:
    """The domains with the largest share of rows to drop."""
    bad = [
        (each.lights["RED_LIGHT"] / each.rows, name, each)
        for name, each in domains.items()
        if each.rows >= WORST_ROWS_MIN and each.lights["RED_LIGHT"]
    ]
    if not bad:
        return
    yield f"<h2>Worst domains</h2><p>Of those with at least {WORST_ROWS_MIN} rows.</p>"
    yield f"<table>{_head('Domain', 'rows', 'drop', 'share', '')}"
    for share, name, each in sorted(bad, key=lambda entry: (-entry[0], entry[1]))[:SHOWN_MAX]:
        red = each.lights["RED_LIGHT"]
        yield _row(
            name, f"{each.rows:,}", f"{red:,}", f"{share:.0%}", _bar([(red, "red")], each.rows)
        )
    yield "</table>"


def _suggestions(suggestions: dict[str, str], rows: int) -> Iterator[str]:
    if not suggestions:
        return
    yield "<h2>Perhaps a typo</h2>"
    look = counted(rows, "row looks", "rows look")
    yield f"<p>{look} mistyped. Ask before you change an address.</p>"
    yield f"<table>{_head('in the list', 'probably meant')}"
    for email, correction in suggestions.items():
        yield f"<tr><td>{_text(email)}</td><td>{_text(correction)}</td></tr>"
    yield "</table>"
    if rows > len(suggestions):
        yield f"<p>The first {len(suggestions):,} are shown.</p>"


def _certainty(found: ResultCounts, counts: ReportCounts) -> Iterator[str]:
    """How sure the result is, and what could not be known."""
    unknown, catch_all = found.statuses["unknown"], found.statuses["catch_all"]
    known = found.done - unknown - catch_all
    yield "<h2>How sure this is</h2><ul>"
    clear = counted(known, "row has", "rows have")
    yield f"<li>{clear} a clear answer ({_share(known, found.done)}).</li>"
    for confidence, rows in sorted(counts.confidences.items(), reverse=True):
        tested = "refused" if confidence > 0.9 else "gave no clear answer to"
        yield (
            f"<li>{counted(rows, 'row was', 'rows were')} accepted by a host that {tested} a random name "
            f"(confidence {confidence}).</li>"
        )
    if catch_all:
        are = counted(
            catch_all, "row is of a domain that accepts", "rows are of domains that accept"
        )
        yield f"<li>{are} every name: only a message would tell.</li>"
    if unknown:
        rows_unknown = counted(unknown, "row", "rows")
        yield f"<li>{rows_unknown} could not be known; the reasons are above.</li>"
    yield "</ul>"


def _bar(parts: Sequence[tuple[int, str]], total: int) -> str:
    """A bar of coloured parts, as wide as their share of the total."""
    x, rectangles = 0.0, []
    for number, colour in parts:
        width = BAR_WIDTH * number / max(total, 1)
        if number:
            rectangles.append(
                f'<rect class="{colour}" x="{x:.1f}" width="{width:.1f}" height="{BAR_HEIGHT}"/>'
            )
        x += width
    return (
        f'<svg width="{BAR_WIDTH}" height="{BAR_HEIGHT}" aria-hidden="true">'
        f"{''.join(rectangles)}</svg>"
    )


def _head(first: str, *others: str) -> str:
    cells = "".join(f'<th scope="col" class="number">{other}</th>' for other in others)
    return f'<tr><th scope="col">{first}</th>{cells}</tr>'


def _badge(status: str, colour: str) -> str:
    """A status as the pages of the service show it."""
    return f'<span class="badge {colour} {_text(status)}">{_text(status.replace("_", " "))}</span>'


def _row(name: str, *cells: str) -> str:
    """A name, numbers, and a bar at the end."""
    return _row_of(_text(name), *cells)


def _row_of(name: str, *cells: str) -> str:
    """The same with a name that is HTML."""
    *numbers, bar = cells
    middle = "".join(f'<td class="number">{number}</td>' for number in numbers)
    return f"<tr><td>{name}</td>{middle}<td>{bar}</td></tr>"


def _share(number: int, total: int) -> str:
    return f"{100 * number / max(total, 1):.1f} %"


def _text(text: str) -> str:
    """Text from outside: escaped, and without characters that are not printable."""
    return escape(plain(text))
