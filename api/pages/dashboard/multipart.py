"""Reads the form that sends a list without script: multipart/form-data (RFC 7578), within bounds.

The sign-in's token comes first, and is checked before more of the body is read.
"""

from collections.abc import Awaitable, Callable

from msgspec import Struct
from werkzeug.http import parse_options_header

from ...refusals import InvalidRequest, PayloadTooLarge, Refusal

MEDIA_TYPE = "multipart/form-data"
BOUNDARY_CHARACTERS_MAX = 70  # RFC 2046 5.1.1
HEAD_OCTETS_MAX = 8 * 1024  # of a part, as browsers send 200; parsing takes time with its length
PARTS_MAX = 20
FIELD_OCTETS_MAX = 16 * 1024  # as of a form without a file


class NoToken(Exception):
    """The form does not begin with the sign-in's token."""


class Part(Struct, frozen=True):
    """One part of a form."""

    name: str
    file_name: str | None  # None: a field
    octets: bytes = b""


async def read_parts(
    receive: Callable[[], Awaitable[bytes]],
    boundary: str,
    is_token: Callable[[Part], bool],
    octets_max: int,
) -> list[Part]:
    """Return the parts of a form; `receive` returns no octets at its end.

    Raises NoToken once a first part is there that is not a token; InvalidRequest; PayloadTooLarge.
    """
    if not (boundary.isascii() and 0 < len(boundary) <= BOUNDARY_CHARACTERS_MAX):
        raise InvalidRequest("The form has no valid boundary.")
    body, edge = _Body(receive), f"\r\n--{boundary}".encode()
    too_long = InvalidRequest("A part of the form has a head that is too long.")
    parts: list[Part] = []
    await body.until(edge, HEAD_OCTETS_MAX, too_long)
    while (ending := await body.read(2)) != b"--":
        if ending != b"\r\n":
            raise InvalidRequest("The form is malformed.")
        head = _part_of(await body.until(b"\r\n\r\n", HEAD_OCTETS_MAX, too_long))
        if len(parts) == PARTS_MAX:
            raise InvalidRequest(f"A form has at most {PARTS_MAX} fields.")
        if not parts and head.file_name is not None:
            raise NoToken
        most = FIELD_OCTETS_MAX if head.file_name is None else octets_max
        octets = await body.until(edge, most, PayloadTooLarge(most))
        parts.append(Part(head.name, head.file_name, octets))
        if len(parts) == 1 and not is_token(parts[0]):
            raise NoToken
    return parts


class _Body:
    """The octets that were received and not taken yet."""

    def __init__(self, receive: Callable[[], Awaitable[bytes]]) -> None:
        self._receive = receive
        self._octets = bytearray(b"\r\n")  # the first boundary may have none before it

    async def until(self, mark: bytes, octets_max: int, refusal: Refusal) -> bytes:
        """Take what comes before `mark`, and the mark; raises `refusal` if that is too much."""
        searched = 0
        while (at := self._octets.find(mark, searched)) < 0:
            searched = max(0, len(self._octets) - len(mark) + 1)
            if searched > octets_max:
                raise refusal
            await self._receive_more()
        if at > octets_max:
            raise refusal
        found = bytes(self._octets[:at])
        del self._octets[: at + len(mark)]
        return found

    async def read(self, count: int) -> bytes:
        while len(self._octets) < count:
            await self._receive_more()
        found = bytes(self._octets[:count])
        del self._octets[:count]
        return found

    async def _receive_more(self) -> None:
        octets = await self._receive()
        if not octets:
            raise InvalidRequest("The form is incomplete.")
        self._octets += octets


def _part_of(head: bytes) -> Part:
    """The part with this head, without its content. Raises InvalidRequest."""
    for line in head.decode("utf-8", "replace").split("\r\n"):
        field, _, value = line.partition(":")
        if field.strip().lower() == "content-disposition":
            _, options = parse_options_header(value)
            if "name" in options:
                return Part(options["name"], options.get("filename"))
    raise InvalidRequest("A part of the form has no name.")
