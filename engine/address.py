"""Layer 1: parses a mail address (RFC 5321 4.1.2, 5322 3.4.1, 6531 3.3, 5890-5893).

The text is verified as written: nothing is trimmed, no comment, route or display name
is removed, and the local part is sent unchanged. Only the domain is converted to the
form used in DNS.

One regular expression parses nearly every address. The rest (quotes, other scripts,
`xn--`, and everything invalid) takes a slower path, which can say what is wrong. Both
give the same result where both give one.
"""

import re
from unicodedata import bidirectional, category, name, normalize

import idna
import msgspec

# 64 + 1 + 255, the widest reading of RFC 5321 4.5.3.1; longer texts are not parsed.
TEXT_CHARACTERS_MAX = 320
LOCAL_OCTETS_MAX = 64  # RFC 5321 4.5.3.1.1, in UTF-8 and quotes included: as sent
MAILBOX_OCTETS_MAX = 254  # RFC 5321 4.5.3.1.3 less the angle brackets (RFC 3696, erratum 1690)
LABEL_OCTETS_MAX = 63  # RFC 1035 2.3.4
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # in the place of octets that were not text
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]++"
_LABEL = r"(?!..--)[A-Za-z0-9][A-Za-z0-9-]{0,62}+(?<!-)"
_PLAIN = re.compile(
    rf"({_ATOM}(?:\.{_ATOM})*+)@((?:{_LABEL}\.)++(?![0-9]+\Z){_LABEL})",
)
_NO_ATEXT = re.compile(r'[\x00-\x20"(),:;<>@\[\\\]\x7f]')  # ASCII only; the dot has its own rules
_NO_LDH = re.compile(r"[^a-z0-9-]")
_QUOTED = re.compile(r'"(?:[^"\\]|\\[ -~])*+"')  # a backslash quotes ASCII only, also in RFC 6531
_QUOTED_LOOSELY = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})  # what makes a domain a Bidi domain, RFC 5893 1.4


class NotAnAddress(ValueError):
    """The text is not a mail address. The message says why, for people."""


class Address(msgspec.Struct, frozen=True, gc=False):
    """A valid address.

    `text` is the input; `local` is the local part as it is sent
    (quotes kept); `domain` is lower case, A-labels, no dot at the end.
    """

    text: str
    local: str
    domain: str

    @property
    def mailbox(self) -> str:
        return f"{self.local}@{self.domain}"

    @property
    def needs_smtputf8(self) -> bool:
        return not self.local.isascii()


def parse(text: str) -> Address:
    """Parse an address. Raises NotAnAddress and nothing else.

    The mailbox of an Address is printable but for joiners, within the limits of RFC 5321, can
    be encoded, and parses to itself.
    """
    if len(text) > TEXT_CHARACTERS_MAX:
        raise NotAnAddress(f"it is longer than {TEXT_CHARACTERS_MAX} characters")
    return parse_plain(text) or parse_carefully(text)


def parse_plain(text: str) -> Address | None:
    """Parse an ordinary address; None means that the slower path has to decide."""
    found = _PLAIN.fullmatch(text)
    if found is None or len(text) > MAILBOX_OCTETS_MAX:
        return None
    local, domain = found.groups()
    if len(local) > LOCAL_OCTETS_MAX:
        return None
    return Address(text, local, domain.lower())


def parse_carefully(text: str) -> Address:
    local, domain = _split(text)
    _check_local(local)
    address = Address(text, local, _read_domain(domain))
    if len(address.mailbox.encode()) > MAILBOX_OCTETS_MAX:
        raise NotAnAddress(f"the address is longer than {MAILBOX_OCTETS_MAX} octets")
    return address


def _split(text: str) -> tuple[str, str]:
    """Split the text at the @ that is not inside quotes."""
    if not text:
        raise NotAnAddress("it is empty")
    if text != text.strip():
        raise NotAnAddress("there is white space around it")
    if text.endswith(">"):
        raise NotAnAddress("angle brackets or a name stand around the address")
    if text.startswith('"'):
        local = _quoted(text)
        at, domain = text[len(local) : len(local) + 1], text[len(local) + 1 :]
        if at and at != "@":
            raise NotAnAddress(f"{_shown(at)} follows the closing quote, where the @ should")
    else:
        local, at, domain = text.partition("@")
    if not at:
        raise NotAnAddress("there is no @")
    if "@" in domain:
        raise NotAnAddress("there is more than one @")
    return local, domain


def _quoted(text: str) -> str:
    """The quoted string at the start of the text, with its quotes."""
    if found := _QUOTED.match(text):
        return found[0]
    if _QUOTED_LOOSELY.match(text):
        raise NotAnAddress("a backslash stands before a character that it may not quote")
    raise NotAnAddress("the quotes are not closed")


def _check_local(local: str) -> None:
    if local.startswith('"'):
        inside = local[1:-1]
        if not inside:  # RFC 5322, erratum 3135: it would mean the same as no local part
            raise NotAnAddress("there is nothing between the quotes")
    else:
        inside = local
        _check_dots(local, "local part")
        # Composed too: U+037E becomes a semicolon wherever software normalizes. Not
        # composed alone: "<" and U+0338 become one harmless sign, and "<" would be sent.
        if wrong := _NO_ATEXT.search(local) or _NO_ATEXT.search(normalize("NFC", local)):
            raise NotAnAddress(f"the local part holds {_shown(wrong[0])}, which needs quotes")
    for position, character in enumerate(inside):
        if character == REPLACEMENT:
            raise NotAnAddress(
                f"the local part holds {_shown(character)}, a character that was lost"
            )
        if not character.isprintable() and not _joins(inside, position):
            raise NotAnAddress(f"the local part holds {_shown(character)}, which is not printable")
    if category(inside[0]).startswith("M"):  # it would combine with the character before it, "<"
        raise NotAnAddress(f"the local part begins with the combining {_shown(inside[0])}")
    if len(local.encode()) > LOCAL_OCTETS_MAX:
        raise NotAnAddress(f"the local part is longer than {LOCAL_OCTETS_MAX} octets")


def _joins(text: str, position: int) -> bool:
    """Whether the character joins letters of a script that has joiners (RFC 5892 A.1 and A.2)."""
    if text[position] not in JOINERS or len(text) > LOCAL_OCTETS_MAX:
        return False
    try:
        return idna.core.valid_contextj(text, position)
    except ValueError:  # a neighbour without a name in Unicode
        return False


def _check_dots(text: str, part: str) -> None:
    if not text:
        raise NotAnAddress(f"the {part} is missing")
    if text.startswith("."):
        raise NotAnAddress(f"the {part} begins with a dot")
    if text.endswith("."):
        raise NotAnAddress(f"the {part} ends with a dot")
    if ".." in text:
        raise NotAnAddress(f"the {part} has two dots in a row")


def _read_domain(text: str) -> str:
    """The domain as used in DNS: lower case, A-labels."""
    if text.startswith("["):
        raise NotAnAddress("an address literal stands in the domain's place")
    _check_dots(text, "domain")
    labels = [_read_label(label) for label in _fold(text).split(".")]
    if len(labels) < 2:
        raise NotAnAddress("the domain has no dot")
    if labels[-1].shown.isdigit():
        raise NotAnAddress("the domain ends in a number")
    _check_directions(labels)
    return ".".join(label.sent for label in labels)


def _fold(domain: str) -> str:
    """The domain in lower case, composed: steps 1 and 3 of RFC 5895 section 2.

    Its other steps, and UTS 46, map full-width letters, digits and dots to ASCII.
    Software that later mails to this address may not, so they are not mapped here, and
    IDNA 2008 refuses them.
    """
    folded = []
    for character in domain:
        # Only Cherokee folds to upper case; domains use it as it is.
        lower = character if character == character.casefold() else character.lower()
        if not character.isascii() and any(each.isascii() for each in lower):
            raise NotAnAddress(f"the domain holds {_shown(character)}, which only looks like ASCII")
        folded.append(lower)
    return normalize("NFC", "".join(folded))


class _Label(msgspec.Struct, frozen=True):
    sent: str  # the A-label, or plain ASCII
    shown: str  # the U-label, or plain ASCII


def _read_label(label: str) -> _Label:
    if len(label) > LABEL_OCTETS_MAX:
        raise NotAnAddress(f"a label of the domain is longer than {LABEL_OCTETS_MAX} octets")
    if label.isascii():
        if wrong := _NO_LDH.search(label):
            raise NotAnAddress(f"the domain holds {_shown(wrong[0])}, which may not stand there")
        if label.startswith("-") or label.endswith("-"):
            raise NotAnAddress("a label of the domain begins or ends with a hyphen")
        if label[2:4] != "--":
            return _Label(label, label)
    return _read_idna_label(label)


def _read_idna_label(label: str) -> _Label:
    """Check a U-label or an A-label by IDNA 2008, and convert it to the other form."""
    try:
        shown = idna.ulabel(label)
        sent = idna.alabel(shown).decode("ascii")
    except UnicodeError as error:
        raise _breaks_idna(error) from error
    if label not in (shown, sent):  # an A-label that is not the canonical one (RFC 5891 5.3)
        raise NotAnAddress(f"the domain breaks IDNA 2008: {label} should be {sent}")
    return _Label(sent, shown)


def _check_directions(labels: list[_Label]) -> None:
    """In a domain with a right-to-left label the Bidi rule applies to all labels (RFC 5893 1.4)."""
    if not any(bidirectional(each) in _RIGHT_TO_LEFT for label in labels for each in label.shown):
        return
    try:
        for label in labels:
            idna.check_bidi(label.shown, check_ltr=True)
    except UnicodeError as error:
        raise _breaks_idna(error) from error


def _breaks_idna(error: UnicodeError) -> NotAnAddress:
    codepoint = getattr(error, "codepoint", None)
    if codepoint is None:
        return NotAnAddress(f"the domain breaks IDNA 2008: {error}")
    return NotAnAddress(
        f"the domain breaks IDNA 2008: {_shown(chr(codepoint))} may not stand there"
    )


def _shown(character: str) -> str:
    """A character for a message: itself if it is printable ASCII, else its number and name."""
    if character.isascii() and character.isprintable():
        return "a space" if character == " " else character
    return f"U+{ord(character):04X} {name(character, '')}".rstrip()
