"""Finds the header row, and the column of the addresses.

Pure: takes names and a sample of rows. Returns a position, or raises BadList with the
choices.
"""

import re
from collections import Counter
from collections.abc import Sequence

from mailprobe.api.listfile.survey import BadList
from mailprobe.api.terminal import plain
from mailprobe.engine.address import NotAnAddress, parse

SAMPLE_ROWS = 1000  # a column without addresses in these has none
LISTED_MAX = 12  # columns named in a message
TITLE_ROWS_MAX = 20  # above a header; more takes --skip-lines

# A header's letters and digits, lower case, of the languages lists come in.
WORDS = """
    email emails emailaddress emailaddresses mail mailaddress mailid emailid useremail
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

# `Ann Lee <ann@shop.test>`, RFC 5322's name-addr: the address is what the brackets hold.
MAILBOX = re.compile(r"[^<>]*<\s*([^<>\s]+)\s*>[\s,;]*")
# Not white space in Unicode: a byte order mark within a file, and a zero-width space, which
# text copied from browsers and documents contains.
INVISIBLE = "\ufeff\u200b"
WORD_ENDS = re.compile(r"[\s(\[{<:/,;*]+")
# One of several addresses: a word with one @, between separators.
ONE_OF_SEVERAL = re.compile(r'(?<![^\s<>,;|"()])[^\s<>,;|"()@]+@[^\s<>,;|"()@]+(?![^\s<>,;|"()])')


def address_in(cell: str) -> str:
    """The address in a cell: its text without white space, or a mailbox's address.

    Of several addresses it is the first.
    """
    text = cell.strip()
    if not text.isascii():
        text = text.strip(INVISIBLE).strip()
    if text.endswith((">", ",", ";")) and (mailbox := MAILBOX.fullmatch(text)) is not None:
        return mailbox[1] if "@" in mailbox[1] else text
    several = several_in(text)
    return several[0] if several else text


def several_in(cell: str) -> list[str]:
    """The addresses of a cell that has two or more, without repetitions; else nothing.

    A quoted local part may contain what looks like an address: a cell that as a whole is
    one address has no others.
    """
    found = ONE_OF_SEVERAL.findall(cell) if cell.count("@") > 1 else []
    if len(found) < 2:
        return []
    try:
        parse(cell.strip())
    except NotAnAddress:
        return list(dict.fromkeys(found))
    return []


def could_be_address(cell: str) -> bool:
    """Whether it is an address, even misspelt; `email (you@shop.test)` is a header."""
    text = cell.strip()
    return "@" in text[1:] and not _begins_with_name(text)


def _begins_with_name(text: str) -> bool:
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


def header_place(rows: Sequence[Sequence[str]], wanted: str | None) -> tuple[int, bool]:
    """How many of the first rows are a title or notes, and whether the next is the header.

    Blank rows count. A row that contains the column name `wanted` is the header.
    """
    filled = [position for position, row in enumerate(rows) if any(cell.strip() for cell in row)]
    first = filled[: TITLE_ROWS_MAX + 1]
    if wanted is not None and not is_number(wanted):
        for position in first:
            if any(wanted == cell.strip() for cell in rows[position]):
                return position, True
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


def find_column(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    wanted: str | None,
    file: str,
    *,
    headless: bool = False,
) -> int:
    """The position of the column of addresses, from 0. Raises BadList if it is not clear.

    `wanted` is the --column option: a name, or a number from 1.
    """
    width = max([len(names), *map(len, rows)])
    if wanted is not None:
        return _wanted_column(names, wanted, width, file)
    named = [position for position, name in enumerate(names) if names_addresses(name)]
    if len(named) == 1:
        return named[0]
    full = [position for position in named or range(width) if _is_full(rows, position)]
    if len(full) > 1 and not named:
        full = [p for p in full if p < len(names) and "mail" in names[p].casefold()] or full
    if len(full) == 1:
        return full[0]
    if full or named:
        choice = full or named
        raise BadList(
            f"{file} has several columns of addresses ({_listed(names, choice)})",
            f"; name one with --column {'NUMBER' if headless else 'NAME'}",
        )
    raise BadList(
        f"{file} has no column of addresses that could be made out "
        f"(columns: {_listed(names, range(len(names)))})",
        "; name it with --column",
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
                f"give one's number instead: {numbers}"
            )
    raise BadList(
        f"{file} has no column {plain(wanted)} (columns: {_listed(names, range(len(names)))})"
    )


def _is_full(rows: Sequence[Sequence[str]], position: int) -> bool:
    """Do most of the cells that are not blank look like an address?"""
    cells = [row[position] for row in rows if position < len(row) and row[position].strip()]
    return 2 * sum(map(has_address, cells)) > len(cells)


def has_address(cell: str) -> bool:
    before, at, after = address_in(cell).partition("@")
    return bool(before and at and after) and "@" not in after


def is_address(cell: str) -> bool:
    """Is it one word that has the form of an address?"""
    return has_address(cell) and re.search(r"[\s<>]", address_in(cell)) is None


def _listed(names: Sequence[str], positions: Sequence[int]) -> str:
    listed = [
        plain(names[position] if position < len(names) else "") or f"number {position + 1}"
        for position in positions[:LISTED_MAX]
    ]
    more = len(positions) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more else "")
