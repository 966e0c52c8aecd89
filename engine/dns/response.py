"""The response to a DoH request, or its failure, over either version of HTTP."""

from typing import Generic, TypeVar

from msgspec import Struct

FIELDS_OCTETS_MAX = 32 * 1024  # header fields of one response; resolvers send a few hundred
DISCONNECTED = "the endpoint disconnected"
DNS_MESSAGE = "application/dns-message"  # RFC 8484 6


class NotHttp(Exception):
    """The server sent what is not HTTP, or more of it than we accept. The message is for people."""


class TooLong(Exception):
    """A body of more octets than were allowed."""


class TransportFailed(OSError):
    """No DNS message came back: not reached, not HTTP 200, not DNS, too long."""


class NotProcessed(TransportFailed):
    """The endpoint has not processed the query. That says nothing about the endpoint or the name."""


class QueryRefused(NotProcessed):
    """The endpoint refuses the query because there are too many (429), or for a while (503).

    `retry_after_s` is what it asks for, if it says so.
    """

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


def overlong(octets_max: int) -> TransportFailed:
    return TransportFailed(f"an answer of more than {octets_max} octets")


class HttpResponse(Struct):
    """A final response. Fields that were not sent are empty; other fields are not kept."""

    status: int
    kind: bytes = b""  # Content-Type
    date: bytes = b""
    body: bytes = b""
    retry_after: bytes = b""


class DohResponse(Struct, frozen=True):
    """What an endpoint sent: the DNS message, and the Date header."""

    octets: bytes
    date: str | None


class StreamRefused:
    """The server has not processed this request; it may be sent again."""


Outcome = HttpResponse | StreamRefused | TransportFailed  # of one request
Request = TypeVar("Request")


class HttpState(Generic[Request]):
    """What a connection has to write, and which requests have their outcomes."""

    def __init__(self, greeting: bytes = b"") -> None:
        self._out = bytearray(greeting)
        self._settled: list[tuple[Request, Outcome]] = []
        self.leaving = False  # no more requests may be sent

    def pop_out(self) -> bytearray:
        """Return the octets to write, and forget them."""
        out, self._out = self._out, bytearray()
        return out

    def pop_settled(self) -> list[tuple[Request, Outcome]]:
        """Return the outcomes since the last call."""
        settled, self._settled = self._settled, []
        return settled
