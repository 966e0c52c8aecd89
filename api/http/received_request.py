"""A request as the application receives it from the server: id, admission, headers and body.

The server leaves id and admission in the state of the ASGI scope (`hand_over`), and a body that came
with the head in its extensions. An application behind another server has none of them: there a
request gets its id when it is asked for. It needs no part of the server, so that quota and
operations know what an admission is.
"""

import random
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import trio
from msgspec import Struct

from ..admission.overload import Ticket
from ..admission.request_bodies import ArrivingBody
from ..refusals import PayloadTooLarge, SlowBody
from ..schema import BODY_S_MAX

Message = MutableMapping[str, Any]
Scope = Any  # a Message too; frameworks have their own types for it
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]  # scope, Receive, Send

WHOLE_BODY = "mailprobe.whole_body"  # in `extensions`: the body, if it came with the head


class Admission(Struct, frozen=True):
    """A request's share of admission control: its ticket and its body.

    Calls do nothing for a request that has none.
    """

    ticket: Ticket | None = None  # of a POST
    arrival: ArrivingBody | None = None  # of a body that came after the head

    def admitted(self) -> None:
        """The request leaves the queue: it has its reservation, or needs none."""
        if self.ticket is not None:
            self.ticket.leave()

    def identified(self, account_id: str) -> None:
        """The request has a key of this account."""
        if self.arrival is not None:
            self.arrival.identify(account_id)

    def stored(self, octets: int) -> None:
        """So many octets of the request's body are on disk."""
        if self.arrival is not None:
            self.arrival.free(octets)


NO_ADMISSION = Admission()  # of work without a request, and of requests that are never rejected


def hand_over(scope: Scope, request_id: str, admission: Admission) -> None:
    """Let the application find both in the scope."""
    state = scope.setdefault("state", {})
    state["request_id"], state["admission"] = request_id, admission


def new_request_id() -> str:
    """Return a random id. It need not be secret, so it saves the system call of a uuid."""
    return f"{random.getrandbits(128):032x}"


def request_id_of(scope: Scope) -> str:
    """The id that the server gave the request, the same in all logs."""
    state: dict[str, str] = scope.setdefault("state", {})
    return state.get("request_id") or state.setdefault("request_id", new_request_id())


def admission_of(scope: Scope) -> Admission:
    """What the request holds of the server's admission control."""
    admission: Admission = scope.get("state", {}).get("admission", NO_ADMISSION)
    return admission


def headers_of_scope(scope: Scope) -> dict[str, str]:
    """The headers by lower-case name; repeated ones joined with commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


async def read_body(scope: Scope, receive: Receive, arrived_at: float, octets_max: int) -> bytes:
    """Return the body of a request that arrived then, on trio's clock.

    Raises PayloadTooLarge, SlowBody.
    """
    whole: bytes | None = scope.get("extensions", {}).get(WHOLE_BODY)
    if whole is not None and len(whole) <= octets_max:
        return whole
    octets, has_more = bytearray(), True
    with trio.move_on_at(arrived_at + BODY_S_MAX):
        while has_more:
            part, has_more = await next_part(receive)
            octets += part
            if len(octets) > octets_max:
                raise PayloadTooLarge(octets_max)
        return bytes(octets)
    raise SlowBody(BODY_S_MAX)


async def next_part(receive: Receive) -> tuple[bytes, bool]:
    """Return the next part of a body, and whether more follows."""
    message = await receive()
    if message["type"] == "http.disconnect":
        await trio.sleep_forever()  # the request is being cancelled
    return message.get("body", b""), message.get("more_body", False)
