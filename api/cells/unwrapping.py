"""The addresses in a cell, whatever stands around them: links, names, labels, brackets, quotes.

    Clara Nowak <clara@shop.test>        one address, unwrapped
    mailto:clara@shop.test?subject=Hi    one address, unwrapped
    clara@shop.test; vera@shop.test      two addresses
    clara (at) shop.test                 doubtful: an address is suggested, and none is asked
    n/a                                  none

A text that is an address is taken as it is, with few exceptions (NOISE). Other texts are read at
each of their at signs: what may be a local part before it, what may be a domain after it. The
time is linear in the length of the cell. Pure.
"""

import html
import re
from collections.abc import Iterator
from itertools import pairwise
from unicodedata import category, normalize
from urllib.parse import unquote

import msgspec

from mailprobe.engine.address import TEXT_CHARACTERS_MAX, NotAnAddress, parse

from .placeholders import is_placeholder

ADDRESSES_MAX = 1_000  # of a cell: a cell of 32,767 characters has room for five times as many
DOUBTFUL_CHARACTERS_MAX = 2 * TEXT_CHARACTERS_MAX  # of a text in which an address is only supposed

# Nearly every cell: such a text has nothing around it, whether it is an address or not.
_PLAIN_LABEL = r"[A-Za-z0-9]++(?:-++[A-Za-z0-9]++)*+"
PLAIN = re.compile(
    rf"[A-Za-z0-9][A-Za-z0-9_+-]*+(?:\.[A-Za-z0-9_+-]++)*+@{_PLAIN_LABEL}(?:\.{_PLAIN_LABEL})++"
).fullmatch

# Signs and symbols of all scripts, as ranges of characters. Real addresses contain none of them.
# Letters, digits and combining marks are left out, and so is U+FFFD, a character that was lost.
# A middle dot counts except between two l, as in Catalan; a Japanese one counts beside ASCII.
SIGNS = (
    "\u00a1-\u00a9\u00ab\u00ac\u00ae-\u00b4\u00b6\u00b8\u00b9\u00bb-\u00bf\u00d7\u00f7"
    "\u2013-\u2027\u2030-\u205e\u2070\u2074-\u207e\u2080-\u208e\u20a0-\u20bf\u2116\u2117"
    "\u2120-\u2122\u2190-\u2211\u2213-\u2bff\u2e00-\u2e7f\u3001-\u3003\u3008-\u3020\u3030"
    "\ufe00-\ufe19\ufe30-\ufe62\ufe64-\ufe6a\uff01-\uff0c\uff0e\uff0f\uff1a-\uff1f"
    "\uff3b-\uff40\uff5b-\uff65\ufffc\U0001f000-\U0001faff"
)
HYPHENS = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2212\ufe63\uff0d", "-"))
DASH = re.compile(r"(?<=\w)[\u2010-\u2014\u2212\ufe63\uff0d](?=\w)")  # as word processors write it
AT_SIGNS = str.maketrans(dict.fromkeys("＠﹫", "@"))
APOSTROPHE = re.compile(r"(?<=\w)[’‘´′`](?=\w)")  # as word processors write it within a name
FULL_STOPS = str.maketrans(dict.fromkeys("。．｡", "."))
# The names of an address in directories, logs and queries of links, perhaps behind other pairs.
ATTRIBUTE = (
    r"(?:[\w.-]{1,32}=[\w.%-]{0,64}&){0,8}+[?&]?(?:e?-?mail(?:[_-]?addr(?:ess)?)?|addr(?:ess)?|to"
    r"|from|cc|bcc|rcpt|recipient|sender|user(?:[_-]?name)?|login|account|contact)="
)
# Text before an address that could be the beginning of its local part, and is not: signs, half
# of a pair of quotes, bullets, an encoded space or end of a line, a label.
NOISE = re.compile(
    rf"(?:[%=]20|=3c|_x00(?:0[9AD]|20)_|(?:e-?mail|mailto|smtp)(?:=|%3a)|{ATTRIBUTE}"
    r"|(?:电子|電子)?(?:邮箱|郵箱|邮件|郵件|信箱)(?:地址)?|メール(?:アドレス)?|이메일|메일"
    rf"|[{SIGNS}·・'`*~-])++",
    re.IGNORECASE,
)
PAIRED = re.compile(r"(['`*~]).*\1@[^@]*").fullmatch  # signs at both ends of the local part
_MIDDLE_DOT = r"(?<![lL])·|·(?![lL])|(?<=[!-~])・|・(?=[!-~])"
MIDDLE_DOT = re.compile(_MIDDLE_DOT)
MARK = re.compile(rf"[{SIGNS}\u2010-\u2012\u2212\ufe63\uff0d]|{_MIDDLE_DOT}")
# Read from the at sign backwards, and forwards.
LOCAL_REVERSED = re.compile(rf'[^\s<>()\[\]{{}},;:"|@\x00-\x1f{SIGNS}]*+')
LOCAL_IN_LINK_REVERSED = re.compile(rf'[^\s<>()\[\]{{}},;:"|@/?=&#%\x00-\x1f{SIGNS}]*+')
DOMAIN = re.compile(rf"[^\s\x00-\x2c\x2f\x3a-\x40\x5b-\x60\x7b-\x7f{SIGNS}]*+")
LOCAL_EDGE = "'`*~=/!?#&$^|"  # at the beginning of a local part that stands within other text
ENCODED = re.compile(r"%(?:0[AD]|20|2C|3B|3C|3E|40)", re.IGNORECASE)  # as in a link
# In texts of programs: of JSON, and of an XML file of Office (ECMA-376, 22.9.2.19).
ESCAPE = re.compile(r"\\u([0-9A-Fa-f]{4})|_x([0-9A-Fa-f]{4})_")
LINE_END = re.compile(r"(@[\w.-]*\.\w{2,24})(?:\\[nrt])+")  # likewise, behind a domain
JOINED = "_%$~^"  # a domain does not end before these and a letter
LINK = re.compile(r"mailto:|://", re.IGNORECASE)
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
MAILBOX = re.compile(rf"(\s*{_QUOTED}\s*|[^<>]*)<\s*({_QUOTED}@[^<>\s]+|[^<>\s]+)\s*>[\s,;.]*")

# What no text in ASCII lacks that has an address, or means one.
MAY_HAVE_ADDRESS = re.compile(
    r"@|[ (\[{<_-](?:at|arroba|chez|a)[ )\]}>_-]|%40|&\w+;|&#", re.IGNORECASE
)

# Doubtful texts. White space in them is a single space.
AT_WORD = re.compile(
    r" ?[(\[{<]{1,2} ?(?:at|ät|arroba|chez|a|@) ?[)\]}>]{1,2} ?|[_-]at[_-]", re.IGNORECASE
)
BARE_AT_WORD = re.compile(r" (?:at|arroba) ", re.IGNORECASE)
ESCAPED = re.compile(r"\\([@._+-])")  # as in Markdown
DOT_WORD = re.compile(
    r" ?[(\[{<] ?(?:dot|punkt|punto|point|ponto|\.) ?[)\]}>] ?| (?:dot|punkt|punto) |[_-]dot[_-]",
    re.IGNORECASE,
)
SPACE_IN_DOMAIN = re.compile(r"[.-]? [.-]?[a-z0-9-]{1,63}(?:\.[a-z]{2,24})*\.?$", re.IGNORECASE)
SPACED_DOT = re.compile(r" ?\. ?")
DOT_APART = re.compile(r"(?<=\w) \. ?(?=\w)")  # within a local part
# What shows that an address is a part of another one: the end of its domain behind it, or
# directly before it the beginning of its local part.
CUT_ENDING = re.compile(
    r"(?:(?<=\.co)|(?<=\.com)|(?<=\.[a-z]))[,;]([a-z]{2})\.?|[,;](com|net|org|edu|gov|info)\.?"
)
TORN_ENDINGS = (".co m", ".or g", ".ne t", ".ed u", ".go v")
CUT_LOCAL = re.compile(r"""\w[(\[][^()\[\]]*[)\]]\.?$|"\.$|(?:^|\s)[^\s"]*"[^\s"]*\w"$""")
CUT_NAME = re.compile(r"([A-Za-z]+),")
CUT_DOMAIN = re.compile(r"\. ?[a-z]{2,6}\.?$| \.[a-z0-9.-]+$")
SIMPLE_WORD = re.compile(r"[a-z0-9][a-z0-9._+-]*")
# Words before an address that are not part of it.
LABEL_WORDS = """
    e-mail email mail e-mails emails address adresse e-mail-adresse an to from cc bcc von de à para
    da til från od do contact kontakt contacto contatto writes write schreibt und and et y e or oder
    tel fax web work home privat private office büro geschäftlich personal new old neu alt at is the
"""
LABELS = frozenset(LABEL_WORDS.split())


class CellReading(msgspec.Struct, frozen=True, gc=False):
    """What a cell has.

    `addresses` are to be verified; none: the row has no address. A text that is not an address is
    among them as it stands, with the address that was probably meant as `suggestion` if it is
    doubtful. `is_unwrapped`: something stood around an address.
    """

    addresses: tuple[str, ...]
    is_unwrapped: bool = False
    suggestion: str | None = None

    @property
    def has_address(self) -> bool:
        """Whether an address is there, if only a misspelt one."""
        return any(map(_is_shaped, self.addresses))

    @property
    def is_noted(self) -> bool:
        """Whether it is anything but one address or none as it stands."""
        return self.is_unwrapped or self.suggestion is not None


NO_ADDRESS = CellReading(())


def read_cell(cell: str) -> CellReading:
    """Read a cell of a column of addresses."""
    if PLAIN(cell) is not None:
        return CellReading((cell,))
    text = cell.strip()
    bare = _without_invisible(text)
    if not bare or is_placeholder(bare):
        return NO_ADDRESS
    if bare.isascii() and MAY_HAVE_ADDRESS.search(bare) is None:
        return CellReading((bare,))
    if _is_exact(bare):
        return CellReading((bare,), is_unwrapped=bare != text)
    return _read_wrapped(bare)


def doubtful_address(text: str) -> str | None:
    """The address that a text, which is none, probably means; None if it is not doubtful."""
    return read_cell(text).suggestion


def _without_invisible(text: str) -> str:
    """The text without white space and format characters (category Cf) at its ends."""
    if text.isascii():
        return text
    start, end = 0, len(text)
    while start < end and _is_invisible(text[start]):
        start += 1
    while end > start and _is_invisible(text[end - 1]):
        end -= 1
    return text[start:end]


def _is_invisible(character: str) -> bool:
    return character.isspace() or category(character) == "Cf"


def _is_exact(text: str) -> bool:
    """Is the text an address, with nothing before it? A pair (`'ann'@shop.test`) is its own."""
    if PAIRED(text) is None and NOISE.match(text) is not None:
        return False
    return _is_address(text) and (text.isascii() or MARK.search(text) is None)


def _address_or_none(text: str) -> str | None:
    return text if _is_address(text) else None


def _is_address(text: str) -> bool:
    try:
        parse(text)
    except NotAnAddress:
        return False
    return True


def _is_shaped(text: str) -> bool:
    before, at, after = text.partition("@")
    return bool(before and at and after) and not any(map(str.isspace, text)) and "@" not in after


def _read_wrapped(text: str) -> CellReading:
    """Read a text that is not an address as a whole."""
    if not text.isascii():
        plain = DASH.sub("-", APOSTROPHE.sub("'", text))
        if plain != text and _is_exact(plain):
            return CellReading((text,), suggestion=plain)
    shown = ESCAPE.sub(_unescaped, LINE_END.sub(r"\1 ", MIDDLE_DOT.sub("•", text)))
    shown = shown.translate(AT_SIGNS).lstrip("@")
    is_link = LINK.search(shown) is not None
    if (is_link and "%" in shown) or ENCODED.search(shown) is not None:
        shown = unquote(shown)
    if "&" in shown and ";" in shown:
        shown = html.unescape(shown)
    if "@" in shown:
        if (inner := _of_mailbox(shown)) is not None:
            return CellReading((inner,), is_unwrapped=True)
        good, broken = _scanned(shown, is_link=is_link)
        if len(good) > 1 or (good and broken):
            return CellReading((*good, *broken)[:ADDRESSES_MAX], is_unwrapped=True)
        if good:
            meant = _joined(shown, good[0]) or _narrow(good[0]) or _part(shown, good[0])
            if meant is None:
                return CellReading((good[0],), is_unwrapped=True)
            return CellReading((text,), suggestion=meant or None)
    return CellReading((text,), suggestion=_supposed(shown))


def _unescaped(found: re.Match[str]) -> str:
    """The character of an escape; a space for one that is not printable."""
    character = chr(int(found[1] or found[2], 16))
    return character if character.isprintable() else " "


def _of_mailbox(text: str) -> str | None:
    """The address of `Ann Lee <ann@shop.test>` (RFC 5322 name-addr), also if the name is one."""
    if not text.endswith((">", ",", ";", ".")) or (found := MAILBOX.fullmatch(text)) is None:
        return None
    name, inner = found[1].strip(), found[2]
    if "@" in name and (not _is_quoted(name) and any(mark in name for mark in ",; \t\n")):
        return None
    return inner if _is_exact(inner) else None


def _is_quoted(name: str) -> bool:
    return len(name) > 1 and name[0] == name[-1] == '"'


def _scanned(text: str, *, is_link: bool) -> tuple[list[str], list[str]]:
    """The addresses in a text without repetitions, and what has an at sign and is none."""
    good: dict[str, str] = {}
    broken: dict[str, str] = {}
    for found in _candidates(text, is_link=is_link):
        (good if _is_address(found) else broken).setdefault(found.casefold(), found)
        if len(good) + len(broken) >= ADDRESSES_MAX:
            break
    return [*good.values()], [*broken.values()]


def _candidates(text: str, *, is_link: bool) -> Iterator[str]:
    """What stands around each at sign: a local part and a domain, neither of them empty."""
    parts = text.split("@")
    taken = 0  # the beginning of the next part that belongs to the domain before it
    local_of = LOCAL_IN_LINK_REVERSED if is_link else LOCAL_REVERSED
    for before, after in pairwise(parts):
        local = _local_part(before[taken:], local_of)
        found = DOMAIN.match(after)
        assert found is not None  # it may be empty
        taken = found.end()
        domain = _without_invisible(found[0]).rstrip(".-")  # at its beginning they are a mistake
        if not local or not domain:
            continue
        rest = after[taken : taken + TEXT_CHARACTERS_MAX]
        if rest[:1] in JOINED and rest[:1] and rest.lstrip(JOINED)[:1].isalnum():
            domain += rest[:1]  # not the end of a domain, and none with it
        if local[0] == "_" and rest.startswith("_"):
            local = local.lstrip("_")
        yield f"{local}@{domain}"


def _local_part(before: str, local_of: re.Pattern[str]) -> str:
    """The local part at the end of a text, quoted or not; "" if there is none."""
    before = before[-TEXT_CHARACTERS_MAX:]
    if before.endswith('"') and len(before) > 1 and (start := before.rfind('"', 0, -1)) >= 0:
        return before[start:]
    found = local_of.match(before[::-1])
    assert found is not None  # it may be empty
    local = _without_noise(_without_invisible(found[0][::-1]))
    local = _without_noise(local.lstrip(LOCAL_EDGE))
    return local.lstrip(".-") if len(local) < len(before) else local


def _without_noise(local: str) -> str:
    noise = NOISE.match(local)
    return local if noise is None else local[noise.end() :]


def _narrow(address: str) -> str | None:
    """The address in ASCII that one of full-width letters or hyphens of print means."""
    narrow = address if address.isascii() else normalize("NFKC", address.translate(HYPHENS))
    return narrow if narrow != address and narrow.isascii() and _is_address(narrow) else None


def _joined(text: str, found: str) -> str | None:
    """The address that is meant if white space within it has torn it; None if it is whole."""
    if len(text) > DOUBTFUL_CHARACTERS_MAX:
        return None
    line = " ".join(text.split())
    before, at, after = line.partition("@")
    local, _, domain = found.rpartition("@")
    rest = after[len(domain) :]
    if line.count('"') % 2 and '"' in before and not line.startswith('"'):
        return found  # it may be a part of what the quote belongs to
    joined = DOT_APART.sub(".", before)
    if CUT_DOMAIN.match(rest):
        return _address_or_none(joined.rpartition(" ")[2] + at + after.replace(" ", "").rstrip("."))
    if joined != before and joined.endswith(f".{local}") and not rest.strip(" .,;"):
        return _address_or_none(joined.rpartition(" ")[2] + at + domain)
    is_apart = text.partition(found)[0].endswith(("\t", "  "))  # as in columns
    if is_apart or not before.endswith(f" {local}") or rest.strip(" .,;"):
        return None
    words = before[: -len(local) - 1].split(" ")
    is_begun = words[-1].endswith((".", "_", "+")) and not words[-1][:-1].isdigit()  # `1.` counts
    if is_begun and SIMPLE_WORD.fullmatch(words[-1]):
        return _address_or_none(words[-1] + local + at + domain)
    if len(words) > 1 or not SIMPLE_WORD.fullmatch(words[0]) or words[0].rstrip(".").isdigit():
        return None
    if words[0] in LABELS or words[0] in local:  # `ann ann.lee@shop.test` has a name
        return None
    return _address_or_none(words[0] + local + at + domain)


def _part(text: str, found: str) -> str | None:
    """The whole address of which `found` is a part; "" if it has none, None if `found` is whole."""
    before, _, after = text.partition(found)
    local = found.rpartition("@")[0]
    if f"{found[-3:]}{after}" in TORN_ENDINGS:
        return _address_or_none(f"{found}{after.strip()}")
    if (ending := CUT_ENDING.fullmatch(text, len(text) - len(after))) is not None:
        return _address_or_none(f"{found}{'' if found[-2] == '.' else '.'}{ending[1] or ending[2]}")
    if (name := CUT_NAME.fullmatch(before)) is not None:
        is_name = name[1].lower() in LABELS or name[1].lower() in local.lower()
        return None if is_name else _address_or_none(f"{name[1]}.{found}")
    is_first = after.startswith("@") or (after[:1] == "!" and after[1:2].isalnum())
    is_last = CUT_LOCAL.search(before) or (local[0] == '"' and before[-1:].isalnum())
    return "" if is_first or is_last else None


def _supposed(text: str) -> str | None:
    """The address that a text without one probably means."""
    if len(text) > DOUBTFUL_CHARACTERS_MAX:
        return None
    line = " ".join(text.split())
    visible = "".join(each for each in line if category(each) != "Cf").translate(HYPHENS)
    for attempt in _attempts(visible):
        if attempt == text:
            continue
        good, broken = _scanned(attempt, is_link=LINK.search(attempt) is not None)
        if len(good) == 1 and not broken:
            return good[0]
    return None


def _attempts(text: str) -> Iterator[str]:
    """Readings of a doubtful text, the likely ones first."""
    yield text  # without what is invisible in it
    if "\\" in text:
        yield ESCAPED.sub(r"\1", text)
    spelt = DOT_WORD.sub(".", AT_WORD.sub("@", text))
    if "@" not in spelt:
        spelt = BARE_AT_WORD.sub("@", spelt)
        if " " in spelt:  # a sentence, such as `meet us at shop.test`
            return
    if spelt.count("@") == 1:
        yield spelt
        text = spelt
    if not text.isascii():
        yield normalize("NFKC", text.translate(FULL_STOPS))
    before, at, after = text.partition("@")
    if not at or not before.strip() or not after.strip():
        return
    after = after.lstrip("@")
    local, domain = DOT_APART.sub(".", before.rstrip()), after.lstrip()
    yield f"{local}@{domain}"  # a space beside the at sign, or two of these
    yield f"{local}@{SPACED_DOT.sub('.', domain)}"
    if (torn := SPACE_IN_DOMAIN.search(domain)) is not None:
        yield f"{local}@{domain[: torn.start()]}{torn[0].replace(' ', '')}"
        yield f"{local}@{domain[: torn.start()]}.{torn[0].strip(' .-')}"
    fixed = re.sub(r"\.{2,}", ".", domain.replace(",", "."))
    if "@" not in fixed:
        fixed = fixed.lstrip(".-")
    yield f"{re.sub(r'[.]{2,}', '.', local).strip('.')}@{fixed}"
