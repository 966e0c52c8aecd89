"""The character that separates the cells of a file, decided from its first rows."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from .bounds import CELL_CHARACTERS_MAX
from .dialect import ADDRESS, Cells, Dialect
from .survey import Survey

DELIMITERS = ",;\t|"
SEP_LINE = re.compile(r'"?sep=([,;\t|])"?[\r\n]', re.IGNORECASE)
QUOTED_LINE = re.compile(r'"(?:[^"]++|"")*+"')
DELIMITER_ROWS = 100  # rows of the sample that must agree
MAILBOX_LINE = re.compile(r"[^<>]*<[^<>\s@]+@[^<>\s@]+>\s*(?:[,;]\s*)?")


def declared_delimiter(survey: Survey) -> str | None:
    """The delimiter of a first line `sep=;`, as Excel writes it, or None."""
    found = SEP_LINE.match(survey.sample)
    return found[1] if found else None


def has_quoted_lines(survey: Survey) -> bool:
    """Whether each line stands between quotes as a whole, with cells within them.

    So programs write lines that had delimiters already: `"ann@shop.test,Ann"`.
    """
    lines = [line.strip() for line in survey.sample.splitlines() if line.strip()]
    if not survey.sample_is_all and len(lines) > 1:
        del lines[-1]
    lines = lines[: DELIMITER_ROWS + 1]
    if len(lines) < 2 or not all(map(QUOTED_LINE.fullmatch, lines)):
        return False
    for delimiter in DELIMITERS:
        rows = [line[1:-1].split(delimiter) for line in lines]
        holding = sum(any(ADDRESS.fullmatch(cell.strip(' "')) for cell in row) for row in rows)
        if all(len(row) > 1 for row in rows) and 2 * holding >= len(rows):
            return True
    return False


def find_delimiter(
    survey: Survey, *, surely_a_table: bool, likely: str | None, skip: int
) -> str | None:
    """The delimiter on which the first rows agree best, or None.

    Rows in which one cell is an address count before rows that are equally wide: in
    `ann@shop.test;Doe, John` the comma is text.
    """
    lines = survey.sample.splitlines(keepends=True)
    if not survey.sample_is_all and len(lines) > 1:
        del lines[-1]
    lines = lines[skip:]
    if not surely_a_table and _are_mailboxes(lines):
        return None
    if likely is not None and any(likely in line for line in lines):
        return likely
    scores: dict[str, tuple[int, float, int]] = {}
    for delimiter in DELIMITERS:
        for dialect in _sampled(delimiter):
            rows = _sample_rows(lines, dialect)
            width, agreeing = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
            if width < 2 or not (surely_a_table or 2 * agreeing >= len(rows)):
                continue
            holding = sum(any(ADDRESS.fullmatch(cell.strip()) for cell in row) for row in rows)
            score = (holding, agreeing / len(rows), width)
            scores[delimiter] = max(score, scores.get(delimiter, score))
    return max(scores, key=scores.__getitem__, default=None)


def _sampled(delimiter: str) -> Iterator[Dialect]:
    yield Dialect(delimiter)
    yield Dialect(delimiter, escaped=True)
    yield Dialect(delimiter, quoted=False)
    yield Dialect(delimiter, quoted=False, escaped=True)


def _are_mailboxes(lines: Iterable[str]) -> bool:
    """`Doe, Ann <ann@shop.test>` on each line: the comma belongs to the name."""
    filled = [line for line in lines if line.strip()]
    return bool(filled) and 2 * sum(
        MAILBOX_LINE.fullmatch(line) is not None for line in filled
    ) > len(filled)


def _sample_rows(lines: list[str], dialect: Dialect) -> list[Cells]:
    """The first rows that are not blank."""
    rows: list[Cells] = []
    csv.field_size_limit(CELL_CHARACTERS_MAX)
    try:
        for row in dialect.reader(lines, strict=False):
            if any(cell.strip() for cell in row):
                rows.append(row)
            if len(rows) > DELIMITER_ROWS:
                break
    except csv.Error:  # an unclosed cell: reading the rows reports the line
        pass
    return rows
