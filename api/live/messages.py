"""The messages of the live socket. Each is one line or more; each line stands for itself.

Lines end at LF; a CR before it is white space.

From the client:

    ann@example.org                               an address
    {"email": "ann@example.org", "ref": 17}       the same; its result repeats `ref`
    {"type": "watch", "list": "<id>"}             how far a list is, each second
    {"type": "end"}                               no more addresses follow

From the service, each a JSON object with its `type`:

    result   the result of an address, with `ref`
    credit   `more`: so many more addresses are taken
    wait     `seconds`, `code`: a limit is reached, the service goes on by itself
    list     how far a watched list is, as GET /v1/lists/{id} has it
    error    an error body; the socket closes
    done     `answered`; the socket closes
"""

from collections.abc import Iterator, Sequence

import msgspec
import orjson

from ..refusals import InvalidRequest

MESSAGE_CHARACTERS_MAX = 64 * 1024
LINES_MAX = 1_000  # of a message
REF_CHARACTERS_MAX = 200
REFS = range(-(2**63), 2**64)  # the integers that a result can repeat: orjson writes no others
SHOWN_CHARACTERS_MAX = 80  # of a line, in an error

Ref = str | int | float | None


class LiveAddress(msgspec.Struct, frozen=True):
    """An address to verify, and what its result repeats."""

    email: str
    ref: Ref = None


class WatchedList(msgspec.Struct, frozen=True):
    """A list whose progress the client wants to see."""

    list_id: str


class EndOfInput:
    """The client sends no more addresses."""


LiveInput = LiveAddress | WatchedList | EndOfInput


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    email: str | None = None
    ref: Ref = None
    type: str | None = None
    list: str | None = None


_decode = msgspec.json.Decoder(_Line).decode
_encode = msgspec.json.Encoder().encode


def read_message(message: str | bytes) -> Iterator[LiveInput]:
    """Yield what a message has. Raises InvalidRequest, after what is before the malformed line."""
    if isinstance(message, bytes):
        raise _malformed("A message must be text.")
    lines = [line for line in message.split("\n") if line.strip()]
    if len(lines) > LINES_MAX:
        raise _malformed(f"A message has at most {LINES_MAX:,} lines.")
    yield from map(_input_of, lines)


def _input_of(line: str) -> LiveInput:
    if not line.lstrip().startswith("{"):
        return LiveAddress(line.strip())
    try:
        read = _decode(line)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _malformed(f"The line {_shown(line)} cannot be read: {error}.") from None
    if isinstance(read.ref, str) and len(read.ref) > REF_CHARACTERS_MAX:
        raise _malformed(f"A ref has at most {REF_CHARACTERS_MAX} characters.")
    if isinstance(read.ref, int) and read.ref not in REFS:
        raise _malformed("A ref that is a whole number fits into 64 bits.")
    match read:
        case _Line(email=str(email), ref=ref, type=None, list=None):
            return LiveAddress(email, ref)
        case _Line(email=None, ref=None, type="watch", list=str(list_id)):
            return WatchedList(list_id)
        case _Line(email=None, ref=None, type="end", list=None):
            return EndOfInput()
    raise _malformed(
        f'The line {_shown(line)} is none of {{"email": …, "ref": …}}, '
        '{"type": "watch", "list": …} and {"type": "end"}.'
    )


def _shown(line: str) -> str:
    return line if len(line) <= SHOWN_CHARACTERS_MAX else f"{line[:SHOWN_CHARACTERS_MAX]}…"


def _malformed(why: str) -> InvalidRequest:
    return InvalidRequest(why, "live")


def result_line(ref: Ref, result: msgspec.Struct) -> bytes:
    """A result with its `ref`. Results are encoded as everywhere; only the envelope is untyped."""
    return b'{"type":"result","ref":%b,%b' % (orjson.dumps(ref), _encode(result)[1:])


def typed_line(type: str, fields: msgspec.Struct) -> bytes:
    """A line of the fields of a documented body."""
    return b'{"type":"%b",%b' % (type.encode(), _encode(fields)[1:])


def plain_line(type: str, **fields: object) -> bytes:
    """A line of the service's own."""
    return orjson.dumps({"type": type, **fields})


def message_of(lines: Sequence[bytes]) -> str:
    return b"\n".join(lines).decode()
