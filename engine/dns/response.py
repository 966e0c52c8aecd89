"""What comes of a request, whichever HTTP carried it."""

from dataclasses import dataclass

FIELDS_OCTETS_MAX = 32 * 1024  # of one answer; a resolver sends some hundred


class NotHttp(Exception):
    """What the server sends is no HTTP, or more of it than we bear; the words are for a person."""


class TooLong(Exception):
    """An answer of more octets than were allowed."""


@dataclass(slots=True)
class HttpResponse:
    """A final response. Fields that were not sent are empty; of others nothing is kept."""

    status: int
    kind: bytes = b""  # Content-Type
    date: bytes = b""
    body: bytes = b""
