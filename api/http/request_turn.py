"""One request of a connection, and what it holds of the server until it is over."""

from dataclasses import dataclass, field

from mailprobe.api.http.exchange import Exchange
from mailprobe.api.http.overload import Ticket
from mailprobe.api.http.request_bodies import ArrivingBody


@dataclass(slots=True, eq=False)
class RequestTurn:
    """A request under way; `HttpServer.run_request` admits it, `HttpServer.end` frees all it holds."""

    is_vital: bool  # it is served under any load
    exchange: Exchange = field(init=False)
    ticket: Ticket | None = None  # in the admission queue, of a POST
    arrival: ArrivingBody | None = None  # of a body that came after the head
    octets: int = 0  # of a body that came with the head
    is_held: bool = False  # `octets` are counted in the body budget
    at_work: bool = False  # counted in `in_flight`
    is_over: bool = False
