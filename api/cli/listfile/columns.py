"""Which column holds the addresses: by its name, else by what stands in it.

Pure: names and a sample of rows in, a place out, or BadList with the choice that
a person has.
"""

from collections.abc import Sequence

from api.cli.listfile.survey import BadList
from api.cli.terminal import plain

SAMPLE_ROWS = 1000  # a column that is none by then is none
LISTED_MAX = 12  # columns named in a message

# A header's letters and digits, lower case, of the languages lists come in.
WORDS = """
    email emails emailaddress emailaddresses mail mailaddress mailid emailid useremail
    emailadresse mailadresse emailaddr correo correoelectronico correoelectrónico email1
    courriel courrielle adressemail adresseemail adressecourriel adresseelectronique
    adresseélectronique indirizzoemail indirizzomail postaelettronica endereçodeemail
    enderecodeemail epost epostadress epostadresse sähköposti eposta epostaadresi
    adresemail adresaemail emailcím emailadres mailadres почта элпочта электроннаяпочта
    邮箱 电子邮件 电子邮箱 メール メールアドレス 이메일
"""
NAMES = frozenset(WORDS.split())


def looks_like_header(cells: Sequence[str]) -> bool:
    """Something is said, and no cell holds what could be an address, however misspelt."""
    return any(cell.strip() for cell in cells) and not any(
        "@" in cell.strip()[1:] for cell in cells
    )


def names_addresses(cell: str) -> bool:
    """Is this a usual name for a column of addresses?"""
    return "".join(c for c in cell.casefold() if c.isalnum()) in NAMES


def find_column(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    wanted: str | None,
    file: str,
    *,
    headless: bool = False,
) -> int:
    """The place of the column with the addresses, from 0; BadList where it is not plain.

    `wanted` is what a person said: a name, or a number from 1.
    """
    if wanted is not None:
        return _wanted_column(names, wanted, file)
    named = [place for place, name in enumerate(names) if names_addresses(name)]
    if len(named) == 1:
        return named[0]
    full = [place for place in named or range(len(names)) if _is_full(rows, place)]
    if len(full) > 1 and not named:
        full = [place for place in full if "mail" in names[place].casefold()] or full
    if len(full) == 1:
        return full[0]
    if full or named:
        choice = full or named
        raise BadList(
            f"{file} has several columns of addresses ({_listed(names, choice)}); "
            f"name one with --column {'NUMBER' if headless else 'NAME'}"
        )
    raise BadList(
        f"{file} has no column of addresses that could be made out; "
        f"name it with --column (columns: {_listed(names, range(len(names)))})"
    )


def _wanted_column(names: Sequence[str], wanted: str, file: str) -> int:
    for same in (str, lambda name: name.strip().casefold()):
        found = [place for place, name in enumerate(names) if same(name) == same(wanted)]
        if len(found) == 1:
            return found[0]
        if found:
            numbers = ", ".join(str(place + 1) for place in found)
            raise BadList(
                f"{file} has {len(found)} columns called {plain(wanted)}; "
                f"give one's number instead: {numbers}"
            )
    if wanted.isascii() and wanted.isdigit() and 1 <= int(wanted[:9]) <= len(names):
        return int(wanted) - 1
    raise BadList(
        f"{file} has no column {plain(wanted)} (columns: {_listed(names, range(len(names)))})"
    )


def _is_full(rows: Sequence[Sequence[str]], place: int) -> bool:
    """Do most of the cells that are not blank look like an address?"""
    cells = [row[place] for row in rows if place < len(row) and row[place].strip()]
    return 2 * sum(map(_has_at, cells)) > len(cells)


def _has_at(cell: str) -> bool:
    before, at, after = cell.strip().partition("@")
    return bool(before and at and after) and "@" not in after


def _listed(names: Sequence[str], places: Sequence[int]) -> str:
    listed = [plain(names[place]) or f"number {place + 1}" for place in places[:LISTED_MAX]]
    more = len(places) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more else "")
