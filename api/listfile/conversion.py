"""Files that are not tables and have addresses in a known form: a table of a web page, contact
cards, the recipients of a mail, and a JSON array. They are converted to CSV or NDJSON, and that is read.

Every pass over a text is linear: a file may be made to take long.
"""

import csv
import html
import io
import quopri
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import msgspec

from ..cells.unwrapping import read_cell
from .survey import BadList

WEB_PAGE = re.compile(
    r"\s*(?:<\?xml[^>]{0,200}>\s*)?<(?:!doctype\s+html|html|head|body|table|meta|div|style)\b",
    re.IGNORECASE,
)
CARD_BEGIN = re.compile(r"^[ \t]*BEGIN:VCARD[ \t\r]*$", re.IGNORECASE | re.MULTILINE)
# Kinds that are refused by name, each by its beginning.
REFUSED = {
    "XML": r"<(?:\?xml|[a-z]+:Workbook)\b",
    "LDIF": r"(?:#[^\n]{0,200}\n\s*)*(?:version: 1\s+)?dn:",
    "a dump of a database": r"(?:/\*[^\n]{0,200}\n)?(?:--\s+)*(?:"
    r"(?:mysql|mariadb|postgresql database|phpmyadmin sql) dump|(?:create|drop) table\s|insert into\s)",
}
JSON_ARRAY = re.compile(r'\s*\[\s*[{"\]]')
JSON_OBJECT = re.compile(r'\s*\{\s*"')
CARD_PROPERTY = re.compile(
    r"^(?:[\w-]+\.)?(FN|N|EMAIL)((?:;[^:\n]*)?):(.*)$", re.IGNORECASE | re.MULTILINE
)
# A value of vCard 2.1 that goes on in the next line.
CARD_BREAK = re.compile(
    r"^[^:\n]{0,200};(?:ENCODING=)?QUOTED-PRINTABLE[^:\n]{0,200}:(?:[^\n]*=\n)+",
    re.IGNORECASE | re.MULTILINE,
)
# The lines above a mail, as mail programs show them.
MAIL_HEADER = re.compile(
    r"\s*[*_]{0,2}(?:from|sent|to|cc|bcc|reply-to|subject|date|von|gesendet|an|kopie|betreff|datum|de"
    r"|envoyé|à|objet|date|para|asunto|enviado(?: el)?|fecha|da|inviato|a|oggetto|assunto|aan"
    r"|verzonden|onderwerp|do|od|temat|till|från|ämne|skickat)[*_]{0,2}\s?:[*_]{0,2}\s",
    re.IGNORECASE,
)
LINES_SEEN = 100
CARD_BEGIN_MAX = 400  # characters; what exporters write above the first card is short
SCRIPTS = frozenset({"script", "style"})
SPACED = frozenset({"br", "p", "div", "li"})

Rows = Iterator[Sequence[str]]


def conversion_of(sample: str, name: str, *, is_table: bool) -> "type[Conversion] | None":
    """How a file is converted, by its beginning; None if it is read as it is.

    Raises BadList for a kind of file that has another name than that of a list.
    """
    if WEB_PAGE.match(sample):
        return WebPage
    for kind, beginning in REFUSED.items():
        if re.match(rf"\s*{beginning}", sample, re.IGNORECASE):
            raise BadList(f"{name} is {kind}; export the list as CSV or XLSX")
    if CARD_BEGIN.search(sample, 0, CARD_BEGIN_MAX):
        return Cards
    if JSON_ARRAY.match(sample) and not is_table:
        return Items
    if JSON_OBJECT.match(sample):  # a record may have several addresses
        return None
    return Recipients if _are_recipients(sample, is_table=is_table) else None


class Conversion(ABC):
    """A file's text as rows of a table."""

    ending = ".csv"

    @abstractmethod
    def rows(self, text: str, name: str) -> Rows:
        """The rows, the header first. Raises BadList, which names the file."""

    def encoded(self, text: str, name: str) -> bytes:
        """The rows as CSV. Raises BadList."""
        made = io.StringIO(newline="")
        csv.writer(made, lineterminator="\n").writerows(self.rows(text, name))
        return made.getvalue().encode("utf-8", "surrogatepass")


class WebPage(Conversion):
    """A table of a web page: that with the most addresses."""

    def rows(self, text: str, name: str) -> Rows:
        best = max(_tables(text), key=_addresses_in, default=[])
        if not _addresses_in(best):
            raise BadList(
                f"{name} is a web page without a table of addresses, and most of its lines are "
                "not addresses; save the list as CSV or XLSX"
            )
        yield from best


def _addresses_in(rows: Sequence[Sequence[str]]) -> int:
    return sum("@" in cell for row in rows for cell in row)


def _tables(text: str) -> list[list[list[str]]]:
    tables: list[list[list[str]]] = []
    rows: list[list[str]] = []
    pieces: list[str] | None = None  # of the open cell
    for word, tag in _markup(text):
        if tag is None:
            if pieces is not None:
                pieces.append(word)
        elif word in SPACED:
            if pieces is not None:
                pieces.append(" ")
        elif word == "a":
            if pieces is not None and "mailto:" in tag.lower():
                pieces.append(f"\0{tag}\0")
        elif word.lstrip("/") in ("td", "th", "tr", "table"):
            if pieces is not None and rows:
                rows[-1].append(_cell_of(pieces))
            pieces = [] if word in ("td", "th") else None
            if word == "table":
                rows = []
                tables.append(rows)
            elif word == "tr" or (word in ("td", "th") and not rows):
                rows.append([])
    return [[row for row in rows if row] for rows in tables]


def _cell_of(pieces: Sequence[str]) -> str:
    """A cell's text; the address of a link is added where the text has none."""
    links = [piece for piece in pieces if piece.startswith("\0")]
    shown = html.unescape("".join(piece for piece in pieces if not piece.startswith("\0")))
    text = " ".join(shown.split())
    if links and "@" not in text and (found := read_cell(html.unescape(links[0]))).has_address:
        return f"{text} <{found.addresses[0]}>".strip()
    return text


def _markup(text: str) -> Iterator[tuple[str, str | None]]:
    """The text between tags with None, and each tag's name with its whole text."""
    at = 0
    while (start := text.find("<", at)) >= 0:
        if start > at:
            yield text[at:start], None
        end = text.find("-->" if text.startswith("<!--", start) else ">", start + 1)
        if end < 0:
            return
        tag = text[start + 1 : end]
        at = end + (3 if tag.startswith("!--") else 1)
        name = tag.split(None, 1)[0].rstrip("/").lower() if tag.strip() else ""
        if name in SCRIPTS:
            closing = re.compile(f"</{name}", re.IGNORECASE).search(text, at)
            if closing is None:
                return
            at = closing.start()
        else:
            yield name, tag
    yield text[at:], None


class Cards(Conversion):
    """Contact cards (vCard, RFC 6350 and before): a row for each, with its name and addresses."""

    def rows(self, text: str, name: str) -> Rows:
        yield "name", "email"
        unfolded = text.replace("\r\n", "\n").replace("\n ", "").replace("\n\t", "")
        unfolded = CARD_BREAK.sub(lambda found: found[0].replace("=\n", ""), unfolded)
        for card in CARD_BEGIN.split(unfolded)[1:]:
            shown, emails = "", list[str]()
            for kind, parameters, value in CARD_PROPERTY.findall(card):
                if "QUOTED-PRINTABLE" in (said := parameters.upper()):
                    encoding = "cp1252" if "1252" in said or "8859-1" in said else "utf-8"
                    value = quopri.decodestring(value.encode()).decode(encoding, "replace")
                if kind.upper() == "EMAIL":
                    emails.append(value.strip())
                elif kind.upper() == "FN" or not shown:
                    shown = " ".join(filter(None, value.strip().replace("\\,", ",").split(";")))
            yield shown, "; ".join(emails)


class Items(Conversion):
    """The items of a JSON array: a line for each, with its own text."""

    ending = ".ndjson"

    def rows(self, text: str, name: str) -> Rows:
        try:
            items = msgspec.json.decode(text, type=list[msgspec.Raw])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BadList(f"{name} is not a whole JSON array ({error})") from None
        for item in items:  # these two are between its values alone: strings have them escaped
            yield (bytes(item).decode().replace("\n", " ").replace("\r", " "),)

    def encoded(self, text: str, name: str) -> bytes:
        return "".join(f"{item}\n" for (item,) in self.rows(text, name)).encode()


class Recipients(Conversion):
    """The recipients of a mail: a line for each; what a header says without an address is none."""

    ending = ".txt"

    def rows(self, text: str, name: str) -> Rows:
        for line in text.splitlines():
            for recipient in recipients_of(line):
                if MAIL_HEADER.match(line) is None or read_cell(recipient).has_address:
                    yield (recipient,)


def recipients_of(line: str) -> list[str]:
    """The recipients in a line: `Doe, Ann <ann@shop.test>; bob@shop.test` has two."""
    found: list[str] = []
    pending = ""
    header = MAIL_HEADER.match(line)
    for piece in _pieces(line[header.end() :] if header else line):
        text = f"{pending}, {piece}" if pending else piece
        if "@" in piece:
            found.append(text if pending and "<" in piece else piece)
            pending = ""
        else:
            pending = text
    return [*found, pending] if pending else found


def _pieces(line: str) -> Iterator[str]:
    """What commas and semicolons separate, outside quotes and angle brackets."""
    start, is_quoted, depth = 0, False, 0
    for at, character in enumerate(line):
        if character == '"':
            is_quoted = not is_quoted
        elif character == "<":
            depth = 1
        elif character == ">":
            depth = 0
        elif character in ",;" and not is_quoted and not depth:
            if piece := line[start:at].strip():
                yield piece
            start = at + 1
    if piece := line[start:].strip():
        yield piece


def _are_recipients(sample: str, *, is_table: bool) -> bool:
    """Whether lines are recipients, one of them with several; in a table's file, as a mail has them."""
    lines = [line for line in sample.splitlines() if line.strip()][:LINES_SEEN]
    are_headers = [MAIL_HEADER.match(line) is not None for line in lines]
    if is_table and not any(are_headers):
        return False
    most = 0
    for line, is_header in zip(lines, are_headers, strict=True):
        recipients = recipients_of(line)
        addresses = sum(read_cell(each).has_address for each in recipients)
        if addresses < len(recipients) and not (is_header and addresses <= 1):
            return False
        most = max(most, addresses)
    return most > 1
