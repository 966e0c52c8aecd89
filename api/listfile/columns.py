"""Finds the header row, and the column of the addresses.

Pure: takes names and a sample of rows. Returns a position, or raises BadList with the
choices.
"""

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from itertools import islice, takewhile

from ..cells.unwrapping import read_cell
from ..terminal import plain
from .bounds import ADDRESS_COLUMNS_MAX
from .survey import BadList

PROSE = "text"  # the column of a text whose lines may have addresses
Wanted = Sequence[str]  # columns by name or number from 1; none: the column is to be found

SAMPLE_ROWS = 1000  # a column without addresses in these has none
LISTED_MAX = 12  # columns named in a message
TITLE_ROWS_MAX = 20  # above a header; more takes --skip-lines

# A header's letters and digits, lower case, of the languages lists come in.
WORDS = """
    email emails emailaddress emailaddresses mail mailaddress mailid emailid useremail
    email1value email1address
    emailadresse mailadresse emailaddr correo correoelectronico correoelectrónico email1
    courriel courrielle adressemail adresseemail adressecourriel adresseelectronique
    adresseélectronique indirizzoemail indirizzomail postaelettronica endereçodeemail
    enderecodeemail epost epostadress epostadresse sähköposti eposta epostaadresi
    adresemail adresaemail emailcím emailadres mailadres почта элпочта электроннаяпочта
    邮箱 电子邮件 电子邮箱 メール メールアドレス 이메일 電子郵件 電郵
"""
NAMES = frozenset(WORDS.split())

# Usual names of other columns in a list of people.
OTHER_WORDS = """
    id no nr number name firstname lastname fullname surname givenname familyname title salutation
    company organisation organization city town country state zip postcode phone mobile date notes
    vorname nachname anrede firma ort stadt land plz telefon datum prénom prenom nom société
    nombre apellido apellidos empresa cognome nome azienda imię nazwisko имя фамилия 名前 姓名 이름
"""
OTHER_NAMES = frozenset(OTHER_WORDS.split())

WORD_ENDS = re.compile(r"[\s(\[{<:/,;*]+")
LABELLED = re.compile(
    r"[^@:]*+:\s*+[^\s@:]++@[^\s@:]++\s*"
)  # `Email: ann@shop.test` is not a header
CHECKED_CELLS = 200  # the first of a column that are not empty show whether it has addresses
EXAMPLES = 3  # of its cells, in a message
EXAMPLE_CHARACTERS_MAX = 40
# The names of a second or further column of addresses: of Google's and Outlook's contacts, of
# HubSpot, of Salesforce and its packages, and as people number them.
FURTHER = re.compile(
    r"(?:e?mail(?:address|adresse|adress)?[2-9](?:value|address|adresse)?"
    r"|(?:additional|secondary|alternate|alternative|other|personal|work|home|second|third"
    r"|2nd|3rd|npe01alternate|npe01home|npe01work|zweite|weitere)e?mail"
    r"(?:address|adresse)?(?:es|s|n|c)?)"
)


def could_be_address(cell: str) -> bool:
    """Whether it is an address, even misspelt; `email (you@shop.test)` is a header."""
    text = cell.strip()
    return ("@" in text[1:] or "＠" in text[1:]) and not _begins_with_name(text)


def _begins_with_name(text: str) -> bool:
    if LABELLED.fullmatch(text):
        return False
    words = WORD_ENDS.split(text)
    return len(words) > 1 and (_letters(words[0]) in NAMES or _letters("".join(words[:2])) in NAMES)


def _letters(cell: str) -> str:
    return "".join(c for c in cell.casefold() if c.isalnum())


def looks_like_header(cells: Sequence[str]) -> bool:
    """Whether some cell has text, and no cell could be an address."""
    return any(cell.strip() for cell in cells) and not any(map(could_be_address, cells))


def names_addresses(cell: str) -> bool:
    """Is this a usual name for a column of addresses?"""
    return _letters(cell) in NAMES or (_begins_with_name(cell) and "@" in cell)


def header_place(rows: Sequence[Sequence[str]], wanted: Wanted) -> tuple[int, bool]:
    """How many of the first rows are a title or notes, and whether the next is the header.

    Blank rows count. A row that contains a column name of `wanted` is the header; else one with a
    usual name for addresses that is wider than those above it, none of which could have an address.
    """
    filled = [position for position, row in enumerate(rows) if any(cell.strip() for cell in row)]
    first = filled[: TITLE_ROWS_MAX + 1]
    if names := {name for name in wanted if not is_number(name)}:
        for position in first:
            if any(cell.strip() in names for cell in rows[position]):
                return position, True
    above = 1  # how wide the rows are above it
    for position in takewhile(lambda position: looks_like_header(rows[position]), first):
        width = _filled_width(rows[position])
        if width > above and any(map(names_addresses, rows[position])):
            return position, True
        above = max(above, width)
    width = Counter(_filled_width(rows[position]) for position in filled).most_common(1)[0][0]
    for position in first:
        if _is_note(rows[position]):
            continue
        if width > 1 and _is_title(rows[position], width):
            continue
        if position != first[0] and not looks_like_header(rows[position]):
            break  # the supposed title may be a row with only a name
        return position, looks_like_header(rows[position])
    position = next((position for position in first if not _is_note(rows[position])), first[0])
    return position, looks_like_header(rows[position])


def _filled_width(row: Sequence[str]) -> int:
    """The number of cells up to the last that is not blank."""
    return max((position + 1 for position, cell in enumerate(row) if cell.strip()), default=0)


def _is_note(row: Sequence[str]) -> bool:
    return row[0].lstrip().startswith("#") and not any(map(could_be_address, row[1:]))


def _is_title(row: Sequence[str], width: int) -> bool:
    """Whether a row of a wider table has one cell, neither an address nor a column name."""
    filled = [cell for cell in row if cell.strip()]
    return len(filled) == 1 and not could_be_address(filled[0]) and not names_addresses(filled[0])


def is_number(wanted: str) -> bool:
    return wanted.isascii() and wanted.isdigit()


def is_surely_header(names: Sequence[str], column: int) -> bool:
    """Whether a row without an address is a header, not a row whose address is missing."""
    return bool(column < len(names) and names[column].strip()) or any(
        _letters(name) in OTHER_NAMES for name in names
    )


def find_columns(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    wanted: Wanted,
    file: str,
    *,
    headless: bool = False,
    guesses: bool = False,
) -> list[int]:
    """The positions of the columns of addresses, from 0. Raises BadList if they are not clear.

    `wanted` are the --column options: names, or numbers from 1. Without any it is one column. If none is
    clear, `guesses` takes the one with most addresses.
    """
    width = max([len(names), *map(len, rows)])
    if wanted:
        found = (_wanted_column(names, name, width, file) for name in wanted)
        return list(dict.fromkeys(found))
    try:
        column = _find_column(names, rows, width, file, headless=headless)
        check_column(names, rows, column, file)
    except BadList:
        most = _most_addresses(rows, width) if guesses else None
        if most is None:
            raise
        return [most]
    return [column]


def _most_addresses(rows: Sequence[Sequence[str]], width: int) -> int | None:
    """The first of the columns with most addresses; None: no column has any."""
    found = Counter[int]()
    for row in rows:
        found.update(place for place, cell in enumerate(row) if has_address(cell))
    return max(range(width), key=lambda place: found[place]) if found else None


def further_columns(names: Sequence[str], rows: Sequence[Sequence[str]], column: int) -> list[int]:
    """The columns that are proposed beside the one that was found: they have addresses too."""
    found = (
        position
        for position, name in enumerate(names)
        if position != column
        and (FURTHER.fullmatch(_letters(name)) or "mail" in name.casefold())
        and _is_full(rows, position)
    )
    return [*islice(found, ADDRESS_COLUMNS_MAX - 1)]


def check_column(
    names: Sequence[str], rows: Sequence[Sequence[str]], column: int, file: str
) -> None:
    """Raise BadList if fewer than half of a column's first cells are addresses."""
    cells = [row[column].strip() for row in rows if column < len(row) and row[column].strip()]
    cells = cells[:CHECKED_CELLS]
    others = few_addresses(cells)
    if others:
        column_name = _listed(names, [column])
        raise BadList(
            f"{file}: of the first {len(cells):,} cells of the column {column_name} that are not "
            f"empty, fewer than half are addresses (others: {_shown(others)}); "
            "name the column if it is the right one",
            ", with --column",
            "column",
        )


def few_addresses(cells: Sequence[str]) -> list[str]:
    """The cells that are not addresses, if these are more than half; else nothing.

    Those that say that there is no address do not count.
    """
    readings = [(cell, read_cell(cell)) for cell in cells]
    said = [(cell, each) for cell, each in readings if each.addresses]
    others = [cell for cell, each in said if not (each.has_address or each.suggestion)]
    return others if 2 * len(others) > len(said) else []


def _shown(cells: Sequence[str]) -> str:
    shown = [plain(cell[:EXAMPLE_CHARACTERS_MAX]) for cell in dict.fromkeys(cells)]
    return ", ".join(f"“{cell}”" for cell in shown[:EXAMPLES])


def _find_column(
    names: Sequence[str], rows: Sequence[Sequence[str]], width: int, file: str, *, headless: bool
) -> int:
    named = [position for position, name in enumerate(names) if names_addresses(name)]
    if len(named) == 1:
        return named[0]
    full = [position for position in named or range(width) if _is_full(rows, position)]
    if len(full) > 1 and not named:
        full = [p for p in full if p < len(names) and "mail" in names[p].casefold()] or full
        first = [p for p in full if p < len(names) and not FURTHER.fullmatch(_letters(names[p]))]
        full = first if len(first) == 1 else full  # of `Primary Email` and `Secondary Email`
    if len(full) == 1:
        return full[0]
    if full or named:
        choice = full or named
        raise BadList(
            f"{file} has several columns of addresses ({_listed(names, choice)})",
            f"; name one with --column {'NUMBER' if headless else 'NAME'}, or several: "
            + proposal([names[each] if each < len(names) else "" for each in choice], choice),
            "column",
        )
    raise BadList(
        f"{file} has no column of addresses that could be made out "
        f"(columns: {_listed(names, range(len(names)))})",
        "; name it with --column, or if other lines stand above its header, leave them out with --skip-lines",
        "column",
    )


def _wanted_column(names: Sequence[str], wanted: str, width: int, file: str) -> int:
    if is_number(wanted) and 1 <= int(wanted[:9]) <= width:
        return int(wanted[:9]) - 1
    for same in (str, lambda name: name.strip().casefold()):
        found = [position for position, name in enumerate(names) if same(name) == same(wanted)]
        if len(found) == 1:
            return found[0]
        if found:
            numbers = ", ".join(str(position + 1) for position in found)
            raise BadList(
                f"{file} has {len(found)} columns called {plain(wanted)}; "
                f"give one's number instead: {numbers}",
                parameter="column",
            )
    raise BadList(
        f"{file} has no column {plain(wanted)} (columns: {_listed(names, range(len(names)))})",
        parameter="column",
    )


def _is_full(rows: Sequence[Sequence[str]], position: int) -> bool:
    """Do most of the cells have an address? Those that say that there is none do not count."""
    readings = [read_cell(row[position]) for row in rows if position < len(row)]
    said = [each for each in readings if each.addresses]
    return 2 * sum(each.has_address or each.suggestion is not None for each in said) > len(said)


def has_address(cell: str) -> bool:
    """Whether it has an address, if only a misspelt one, whatever stands around it."""
    return read_cell(cell).has_address


def proposal(names: Sequence[str], positions: Sequence[int]) -> str:
    """The options that name these columns, for a shell."""
    return " ".join(
        f"--column {shlex.quote(name) if name and names.count(name) == 1 else position + 1}"
        for name, position in zip(map(plain, names), positions, strict=True)
    )


def _listed(names: Sequence[str], positions: Sequence[int]) -> str:
    listed = [
        plain(names[position] if position < len(names) else "") or f"number {position + 1}"
        for position in positions[:LISTED_MAX]
    ]
    more = len(positions) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more else "")
