"""Reads one mail: is it a bounce, of which addresses, and why? Never fails, whatever the mail.

A delivery report (RFC 3464) says so by itself. Exim, qmail, Google and others send plain
text: flufl.bounce finds the addresses, and the lines under each of them give the reason. A
mail that is not a bounce, such as an automatic reply or a complaint, is told apart first,
because it may quote one.
"""

import email
import html
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from email.header import decode_header, make_header
from email.message import Message
from email.utils import getaddresses
from itertools import islice

from .kinds import KINDS, REPLY, Kind, kind_of_reason

SCAN_OCTETS_MAX = 1 << 16  # flufl.bounce reads a mail some fifty times
# Of a report that is posted; what it returns is not read. The email package takes seconds for
# thousands of parts, parts within parts, or pieces of a parameter.
REPORT_OCTETS_MAX = 1 << 15
REPORTED_MAX = 20  # addresses: a report has one, each costs some milliseconds
COUNTS_MAX: tuple[tuple[re.Pattern[bytes], int], ...] = (
    (re.compile(rb"boundary", re.I), 8),
    (re.compile(rb"\n--"), 50),
    (re.compile(rb"\n\r?\n"), 300),
    (re.compile(rb"\*\d*\*?="), 20),
    (re.compile(rb";"), 500),
)
TEXT_MAX = 20_000  # of a mail's own text
HEADER_MAX = 10_000
BLOCK_LINES_MAX = 40  # under an address
PLACES_MAX = 5  # at which an address stands
ADDRESSES_MAX = 200  # of one mail
EXTENSIONS_MAX = 20  # fields of a recipient whose names begin with X-
# Exim, of a forwarded mail: the address that failed, and the one that mail was sent to.
GENERATED = re.compile(
    r"^[ \t>]{0,8}<?([^\s<>()]{3,320}|an undisclosed address)>?:?[ \t]*\n"
    r"[ \t>]{0,12}\((?:ultimately )?generated from <?([^\s<>()]{3,320}@[^\s<>()]{1,255})>?\)",
    re.IGNORECASE | re.MULTILINE,
)
UNREADABLE = "\ufffd"  # in the place of bytes that are not text

STATUS_TYPES = ("message/delivery-status", "message/global-delivery-status")
FAILED, DELAYED = ("failed", "fail", "error"), ("delayed", "delay", "expired")
SENDERS = re.compile(r"^(?:mailer[-_.]?daemon|mail[-_.]?daemon|post[-_.]?master|mdaemon|mailerdaemon|"
                     r"microsoftexchange[0-9a-f]*|daemon|bounces?|mail[-_.]?delivery\S*)@", re.I)  # fmt: skip
SUBJECT = re.compile(
    r"undeliver|non[- ]?deliver|not (?:be )?delivered|deliver\w* (?:status|fail|problem|notif|incomplete)|"
    r"mail deliver|delayed|returned (?:mail|to sender)|return(?:ing)? (?:mail|message)|"
    r"failure notice|mail failure|failed delivery|mail system error|delivery report|"
    r"unzustellbar|nicht zustell|non (?:remis|distribu)|недоставлен|не доставлен|no entregad|"
    r"mancat[ao] (?:recapito|consegna)|onbestelbaar|退信|配信"
    , re.I,
)  # fmt: skip
AUTO_REPLY = re.compile(
    r"out[- ]of[- ](?:the )?office|auto(?:matic|mated)?[- ]?(?:reply|response)|vacation|"
    r"abwesen|automatische antwort|réponse automatique|absen(?:ce|t)|respuesta automática", re.I
)  # fmt: skip
REJECTED = re.compile(r"was automatically rejected", re.I)  # in an MDN of Dovecot (RFC 5429)
LATER = re.compile(
    r"not yet been delivered|will be retried|will retry|will continue to (?:be )?(?:try|made|attempt)|"
    r"attempts will continue|delivery (?:of .{0,80})?(?:has been|is) delayed|warning only|"
    r"do not need to (?:resend|take any action)|no action is required on your part", re.I
)  # fmt: skip
# The line at which the returned mail begins.
RETURNED = re.compile(
    r">?\s*-{2}.*\b(?:below|copy|original|returned?|headers?|message (?:text )?follows)\b|"
    r"\s*(?:original )?message (?:headers? )?follows?\b|"
    r"\s*(?:included|enclosed|this) is a copy of (?:the|your) (?:message|mail)\b|"
    r"(?:return-path|received):",
    re.IGNORECASE,
)
LINE_MAX = 200  # of a line that is compared with it
ADDRESS = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
# An address with its reason behind it, as OpenSMTPD and Postfix list them.
LISTED = re.compile(rf"^[ \t]*<?({ADDRESS.pattern})>?:\s", re.MULTILINE)
LINE_TAGS = ("br", "p", "/p", "div", "tr", "li", "h1", "h2", "h3")


def bounces_of(octets: bytes) -> dict[str, Kind] | None:
    """The bounced addresses with their kinds; empty if none could be read; None if it is not a bounce."""
    try:
        return _bounces_of(octets)
    except Exception:  # the email package raises others at hostile text
        return {}


def reported_in(octets: bytes) -> dict[str, Kind]:
    """The addresses of a delivery report (RFC 3464) with their kinds; empty for any other mail.

    Unlike `bounces_of()` it searches no text for addresses: a report that is posted may be forged.
    """
    octets = octets[:REPORT_OCTETS_MAX]
    if any(len(piece.findall(octets)) > most for piece, most in COUNTS_MAX):
        return {}
    try:
        message = email.message_from_bytes(octets)
        found = _by_status(list(islice(_status_blocks(message), REPORTED_MAX)), "")
        return _of_originals(found, _text_of(message)) if found else {}
    except Exception:  # the email package raises others at hostile text
        return {}


def _bounces_of(octets: bytes) -> dict[str, Kind] | None:
    message = email.message_from_bytes(octets.lstrip())
    text = _text_of(message)
    if blocks := list(_status_blocks(message))[:ADDRESSES_MAX]:
        return _of_originals(_by_status(blocks, text), text) or None
    if not _may_be_bounce(message, text):
        return None
    is_from_server = _is_from_server(message)
    addresses_later, addresses = _scan(email.message_from_bytes(octets[:SCAN_OCTETS_MAX]))
    if is_from_server and not (addresses or addresses_later):
        addresses = _named(message, text)
    # The scan may find the sender, too, in the headers of the returned mail.
    in_text = frozenset(each for each in addresses if each in text.lower())
    found = _of_originals(
        _by_text(text, (in_text or addresses) | _undisclosed(text), addresses_later), text
    )
    return found or ({} if is_from_server else None)


def _by_status(blocks: Collection[tuple[str, str, str]], text: str) -> dict[str, Kind]:
    """The addresses that a delivery status reports as failed or delayed."""
    found: dict[str, Kind] = {}
    addresses = {address for address, _, _ in blocks}
    for address, action, reason in blocks:
        if action.startswith(DELAYED):
            kind: Kind = "temporary"
        elif action.startswith(FAILED) or not action:
            kind = kind_of_reason(reason) or _kind_under(text, address, addresses) or "unknown"
        else:
            continue  # delivered, relayed or expanded
        found[address] = min(found.get(address, kind), kind, key=KINDS.index)
    return found


def _of_originals(found: Mapping[str, Kind], text: str) -> dict[str, Kind]:
    """The kinds by the addresses that mail was sent to, before Exim forwarded it."""
    originals = {each[1].lower(): each[2].lower() for each in GENERATED.finditer(text)}
    made: dict[str, Kind] = {}
    for address, kind in found.items():
        original = originals.get(address, address)
        made[original] = min(made.get(original, kind), kind, key=KINDS.index)
    return made


def _undisclosed(text: str) -> frozenset[str]:
    """The addresses that mail was sent to, where Exim does not say to which others it went."""
    return frozenset(each[2].lower() for each in GENERATED.finditer(text) if "@" not in each[1])


def _may_be_bounce(message: Message, text: str) -> bool:
    """Whether a mail without a delivery status may be a bounce: it is no reply and no complaint."""
    types = {part.get_content_type() for part in _own_parts(message)}
    if "message/feedback-report" in types:
        return False
    if "message/disposition-notification" in types:
        return REJECTED.search(text) is not None
    if message.get("X-Failed-Recipients"):
        return True
    subject = _header(message, "Subject")
    if AUTO_REPLY.search(subject) or message.get("X-Autoreply") or message.get("X-Autorespond"):
        return False
    if _is_from_server(message):
        return True
    is_answer = str(message.get("Auto-Submitted", "")).lower().startswith("auto-replied")
    return not (is_answer or message.get("In-Reply-To")) and SUBJECT.search(subject) is not None


def _is_from_server(message: Message) -> bool:
    """Whether a mail server wrote it, by its own account."""
    return bool(message.get("X-Failed-Recipients")) or any(
        # DragonFly's agent writes "MAILER-DAEMON <>".
        SENDERS.match(f"{address or name}@")
        for name, address in getaddresses([_header(message, "From"), _header(message, "Sender")])
    )


def _by_text(
    text: str, addresses: Collection[str], addresses_later: Collection[str]
) -> dict[str, Kind]:
    """The kinds of these addresses, by the lines under each of them."""
    found: dict[str, Kind] = dict.fromkeys(addresses_later, "temporary")
    is_later = LATER.search(text) is not None
    for address in list(addresses)[:ADDRESSES_MAX]:
        kind = "temporary" if is_later else _kind_under(text, address, addresses)
        found[address] = kind or "unknown"
    return found


def _kind_under(text: str, address: str, addresses: Collection[str]) -> Kind | None:
    """The kind by the lines from each place of the address up to the next bounced address.

    If no other has bounced, also by the whole text: the reason may be above the address.
    """
    lines, said = text.split("\n"), []
    folded = [line.lower() for line in lines]
    places = [place for place, line in enumerate(folded) if address in line][:PLACES_MAX]
    for place in places:
        end = place + 1
        while end < min(len(lines), place + BLOCK_LINES_MAX) and not any(
            other in folded[end] for other in addresses if other != address
        ):
            end += 1
        said += [*lines[place:end], ""]
    return kind_of_reason("\n".join([*said, text] if len(addresses) == 1 else said))


def _scan(message: Message) -> tuple[frozenset[str], frozenset[str]]:
    """The addresses that flufl.bounce finds: those with a delay, and those that failed."""
    from flufl.bounce import all_failures

    logging.getLogger("flufl.bounce").setLevel(logging.CRITICAL)
    try:
        temporary, permanent = all_failures(message)
    except Exception:  # its detectors raise others at hostile text
        return frozenset(), frozenset()
    later, failed = (
        frozenset(each.decode("ascii", "replace").strip(" <>").lower() for each in some) - {""}
        for some in (temporary, permanent)
    )
    return later, failed


def _named(message: Message, text: str) -> frozenset[str]:
    """The addresses that the text lists; else the one it names beside sender's and reporter's own."""
    if listed := frozenset(LISTED.findall(text.lower())):
        return listed
    headers = [_header(message, name) for name in ("To", "From", "Delivered-To", "Sender")]
    own = {address.lower() for _, address in getaddresses(headers)}
    named = ADDRESS.findall(f"{_header(message, 'Subject')}\n{text}".lower())
    others = frozenset(each for each in named if each not in own and not SENDERS.match(each))
    return others if len(others) == 1 else frozenset()


def _status_blocks(message: Message) -> Iterator[tuple[str, str, str]]:
    """Each recipient of a delivery report (RFC 3464): its address, action, and status in words."""
    for part in _own_parts(message):
        if part.get_content_type() not in STATUS_TYPES:
            continue
        for block in _blocks_of(part):
            if address := _recipient(block):
                diagnostic = " ".join(_header(block, "Diagnostic-Code").split())
                action = _header(block, "Action").strip().lower()
                said = [diagnostic, *_extensions(block), _header(block, "Status")]
                yield address, action, "\n\n".join(said)


def _extensions(block: Message) -> Iterator[str]:
    """Fields of servers' own with a reply in them, such as X-Supplementary-Info of IronPort."""
    names = [name for name, _ in block.raw_items() if name.lower().startswith("x-")]
    for name in names[:EXTENSIONS_MAX]:
        value = " ".join(_header(block, name).split())
        if REPLY.search(value):
            yield value


def _blocks_of(part: Message) -> Iterator[Message]:
    """The blocks of a delivery status; the email package splits those of the ASCII type only."""
    payload = part.get_payload()
    for block in payload if isinstance(payload, list) else ():
        if isinstance(block, Message):
            yield block
            body = block.get_payload(decode=True)
            for text in re.split(rb"\r?\n\r?\n", body) if isinstance(body, bytes) else ():
                yield email.message_from_bytes(text.lstrip())


def _recipient(block: Message) -> str:
    """The address that mail was sent to, before anything forwarded it."""
    for name in ("Original-Recipient", "Final-Recipient"):
        kind, separator, address = _header(block, name).rpartition(";")
        address = address.partition("(")[0].strip(" <>\t\r\n").lower()
        if (
            "@" in address
            and UNREADABLE not in address
            and (not separator or kind.strip().lower() in ("rfc822", "utf-8"))
        ):
            return address
    return ""


def _text_of(message: Message) -> str:
    """The text of the mail itself, without the returned mail."""
    found: list[str] = []
    for part in _own_parts(message):
        kind = part.get_content_type().split()[0]  # a parameter may come without a semicolon
        if kind not in ("text/plain", "text/html") or (found and kind == "text/html"):
            continue
        octets = part.get_payload(decode=True)
        if not isinstance(octets, bytes):
            continue
        charset = str(part.get_content_charset() or "utf-8")
        try:
            text = octets.decode(charset, "replace")
        except LookupError:
            text = octets.decode("latin-1")
        if kind == "text/html":
            text = _without_markup(text[: 8 * TEXT_MAX])
        found.append(text)
    lines = "\n\n".join(found).replace("\r\n", "\n")[:TEXT_MAX].split("\n")
    returned = (place for place, line in enumerate(lines) if RETURNED.match(line[:LINE_MAX]))
    return "\n".join(lines[: next(returned, None)])


def _without_markup(text: str) -> str:
    """The words of an HTML text, a line for each paragraph. Linear, whatever the text."""
    found, hidden = [], ""
    for piece in f">{text}".split("<"):
        tag, _, words = piece.partition(">")
        name = tag.split(None, 1)[0].lower() if tag.strip() else ""
        if hidden:
            hidden = "" if name == f"/{hidden}" else hidden
        elif name in ("style", "script"):
            hidden = name
        if not hidden:
            found.append(("\n" if name.rstrip("/") in LINE_TAGS else " ") + words)
    return html.unescape("".join(found))


def _own_parts(message: Message) -> Iterator[Message]:
    """The parts of the mail, without those of a mail or a report within it."""
    payload = message.get_payload()
    if message.get_content_maintype() == "message" or not isinstance(payload, list):
        yield message
        return
    for part in payload:
        if isinstance(part, Message):
            yield from _own_parts(part)


def _header(message: Message, name: str) -> str:
    """A header's text, decoded; bytes that are not ASCII are UTF-8 (RFC 6532)."""
    stored = (text for each, text in message.raw_items() if each.lower() == name.lower())
    octets = str(next(stored, ""))[:HEADER_MAX].encode("utf-8", "surrogateescape")
    raw = octets.decode("utf-8", "replace")
    if "=?" not in raw:
        return raw
    try:
        return str(make_header(decode_header(raw)))
    except (ValueError, LookupError):  # UnicodeDecodeError is one
        return raw
