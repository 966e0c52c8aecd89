"""An operation, its request and its reply, without a web framework.

A transport, such as the HTTP application or the tool server, makes a `Call`; a handler receives it
after every check has passed, and returns an `OperationReply`. An `Operation` has all that is
said of it: routes, the API description and the tools are made from it.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from mailprobe.engine import Answer
from mailprobe.storage.records import (
    Actor,
    Answered,
    Caller,
    FirstAnswer,
    IdempotencyRecord,
    KeyKind,
)

from ..http.received_request import NO_ADMISSION, Admission
from ..quota.charge import ChargedAnswers, UndecodableRequest
from ..quota.reservation import Charge
from ..refusals import (
    AnswerLost,
    IdempotencyReused,
    IdempotencyRunning,
    InvalidKey,
    InvalidRequest,
    MethodNotAllowed,
    MissingKey,
    NoSuchRoute,
    OurFault,
    Overloaded,
    PayloadTooLarge,
    Refusal,
    Section,
    SlowBody,
    StorageFull,
    UnsupportedCoding,
    UsageUnknown,
    WrongKeyType,
)
from ..schema import BODY_OCTETS_MAX, AddressBody

if TYPE_CHECKING:
    from ..service import Service

JSON = "application/json"
NDJSON = "application/x-ndjson"
CSV = "text/csv; charset=utf-8"
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
UUID_TEXT = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII)


async def _no_body(octets_max: int) -> bytes:
    return b""


class Call(msgspec.Struct):
    """A request, from its arrival to the answer of its handler.

    A transport gives what has come: `headers` has lower-case names; `read` returns the body, of at
    most the given number of bytes, and raises PayloadTooLarge and SlowBody; `receive` returns the
    next part of the body of an upload, empty at its end. A page gives the caller and the body.
    The checks add what they find: `authenticated`, and `body`, which has the operation's type.
    `charge` is what its units are spent by, if it spends any.
    """

    request_id: str
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    query: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    path: Mapping[str, str] = msgspec.field(
        default_factory=dict
    )  # the variable parts of it, by name
    read: Callable[[int], Awaitable[bytes]] = _no_body
    receive: Callable[[], Awaitable[bytes]] | None = None
    admission: Admission = NO_ADMISSION
    client: str = ""  # the address that the connection comes from
    authenticated: Caller | None = None  # None also if the operation needs no key
    body: Any = None
    charge: Charge | None = None
    idempotency: IdempotencyRecord | None = None  # of a request with an idempotency key
    kept: bool = False  # the answer was stored in the transaction that did the work
    repeats: "Repeats | None" = None  # of an upload with an idempotency key
    # Who acts, where a browser asks in the dashboard; None: the key itself.
    by: Callable[[], Actor] | None = None

    def actor(self, service: "Service") -> Actor:
        """Who acts, for the audit log, and the address from where."""
        if self.by is not None:
            return self.by()
        key, forwarded_for = self.caller.key, self.headers.get("x-forwarded-for", "")
        address = service.visitor(self.client, forwarded_for) or None
        return Actor("key", key.id, key.prefix, address)

    def only_value(self, name: str, section: Section) -> str | None:
        """The value of a query parameter, if there is one. Raises InvalidRequest for several."""
        values = self.query.get(name, [])
        if len(values) > 1:
            raise InvalidRequest(f"The query parameter {name} is there twice.", section)
        return values[0] if values else None

    def asks(self, name: str, section: Section) -> bool:
        """Whether a query parameter is 1. Raises InvalidRequest for values but 0 and 1."""
        values = set(self.query.get(name, ["0"]))
        if values in ({"0"}, {"1"}):
            return values == {"1"}
        raise InvalidRequest(f"The query parameter {name} must be 1 or 0.", section, was_json=True)

    def path_id(self) -> str | None:
        """The id in the path, in lower case; None for what cannot be one."""
        text = self.path["id"].lower()
        return text if UUID_TEXT.fullmatch(text) else None

    async def at_most_once(self, act: "Act") -> "OperationReply":
        """Run the work of an upload whose body is received, or return its first answer.

        Raises AnswerLost, IdempotencyReused, IdempotencyRunning.
        """
        return await (act() if self.repeats is None else self.repeats(act))

    @property
    def caller(self) -> Caller:
        """The authenticated caller of an operation that needs a key."""
        assert self.authenticated is not None
        return self.authenticated

    def first_answer(self, reply: "OperationReply") -> FirstAnswer | None:
        """The answer to store in the transaction that counts or does the work; None without a key."""
        return (
            None
            if self.idempotency is None
            else FirstAnswer(self.idempotency, self.answered(reply))
        )

    def answered(self, reply: "OperationReply") -> Answered:
        """The reply as it is stored: without a body that repeats an oversized text."""
        assert isinstance(reply.body, bytes)
        return Answered(reply.status, (), None if _repeats_much(self.body) else reply.body)

    def mark_kept(self) -> None:
        """Note that the work is done and its answer is stored with it."""
        self.kept = self.idempotency is not None


class StreamedLines(msgspec.Struct, frozen=True):
    """A streamed body; the sender enters and leaves its block."""

    answers: ChargedAnswers
    encode: Callable[[Sequence[Answer]], bytes]


class StreamedParts(msgspec.Struct, frozen=True):
    """A streamed body that is made part by part."""

    parts: AsyncIterator[bytes]


class OperationReply(msgspec.Struct, frozen=True):
    """A reply; `body` is empty, whole, or streamed. `result` is what a whole one encodes."""

    status: int
    body: bytes | StreamedLines | StreamedParts = b""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    media_type: str = JSON
    closes: bool = False  # the connection must not be used again
    result: msgspec.Struct | None = None  # None also if the body is an earlier answer, repeated


ECHOED_CHARACTERS_MAX = 320  # of an address in a stored answer; longer texts are not addresses


def _repeats_much(body: object) -> bool:
    """Whether the answer repeats a text too long for an address: up to 2 MB stored for nothing."""
    texts = body.texts() if isinstance(body, AddressBody) else ()
    return any(len(text) > ECHOED_CHARACTERS_MAX for text in texts)


def parameter(
    name: str, text: str, where: str = "query", *, required: bool = False, **schema: object
) -> dict[str, object]:
    """A parameter in OpenAPI's form."""
    schema = {"type": "string", **schema}
    return {"name": name, "in": where, "required": required, "description": text, "schema": schema}


_encode = msgspec.json.Encoder().encode


def reply(status: int, body: msgspec.Struct) -> OperationReply:
    """A whole reply in JSON."""
    return OperationReply(status, _encode(body), result=body)


Act = Callable[[], Awaitable[OperationReply]]
Repeats = Callable[[Act], Awaitable[OperationReply]]
Handler = Callable[["Service", Call], Awaitable[OperationReply]]
Refusals = tuple[type[Refusal], ...]

ANYWHERE: Refusals = (NoSuchRoute, MethodNotAllowed, OurFault, Overloaded)
KEYED: Refusals = (MissingKey, InvalidKey, UsageUnknown)
BODIED: Refusals = (InvalidRequest, PayloadTooLarge, SlowBody, UnsupportedCoding)
REPEATABLE: Refusals = (IdempotencyReused, IdempotencyRunning, AnswerLost)
MANAGING: Refusals = (*KEYED, WrongKeyType)


class ToolRequest(msgspec.Struct, frozen=True):
    """The request to the API that the call of a tool makes."""

    path: Mapping[str, str] = msgspec.field(default_factory=dict)
    query: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    body: bytes = b""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


class ToolText(msgspec.Struct, frozen=True):
    """A tool's texts, where the operation's do not serve, and the flags of its MCP annotations."""

    title: str = ""  # empty: the operation's summary
    description: str = ""  # empty: the docstring of its handler
    only_reads: bool = False
    destroys: bool = False
    repeats_freely: bool = False  # a second call with the same arguments changes nothing more
    reaches_out: bool = False  # to others than this service


class NoArguments(msgspec.Struct, frozen=True):
    """The arguments of a tool without any: an empty object."""


class ItemId(msgspec.Struct, frozen=True):
    """The argument that an operation takes in its path."""

    id: str


def path_of(taken: msgspec.Struct) -> dict[str, str]:
    """The variable part of the operation's path."""
    return {"id": taken.id} if isinstance(taken, ItemId) else {}


def plain_request(taken: msgspec.Struct, octets: bytes) -> ToolRequest:
    return ToolRequest(path_of(taken), body=octets)


async def whole_answer(taken: msgspec.Struct, reply: OperationReply) -> bytes:
    assert isinstance(reply.body, bytes)
    return reply.body


async def deleted_answer(taken: ItemId, reply: OperationReply) -> bytes:
    return _encode({"deleted": True, "id": taken.id.lower()})


class ToolForm(msgspec.Struct, frozen=True):
    """An operation as a tool. `takes` is the type of its arguments.

    `request_of` takes them, decoded and as sent; `answer_of` makes the object that the tool
    returns of them and of a successful reply. Without `output` that is the operation's own.
    """

    text: ToolText
    takes: type[msgspec.Struct] = NoArguments
    arguments: Mapping[str, Mapping[str, object]] = msgspec.field(
        default_factory=dict
    )  # JSON schema
    hides: tuple[str, ...] = ()  # arguments that are not described
    request_of: Callable[[Any, bytes], ToolRequest] = plain_request
    output: Mapping[str, object] | None = None
    answer_of: Callable[[Any, OperationReply], Awaitable[bytes]] = whole_answer


class Operation(msgspec.Struct, frozen=True):
    """One operation: its name, route, request type, reply type and possible refusals."""

    name: str
    method: str
    path: str
    summary: str
    handler: Handler
    key: KeyKind | None
    gives: type[msgspec.Struct] | None
    status: int = 200
    promises: type[msgspec.Struct] | None = None  # type of the 202 for work that continues
    unready: type[msgspec.Struct] | None = None  # type of a 503 that is not an error
    takes: type[msgspec.Struct] | None = None
    body_required: bool = True
    section: Section = "management"
    may: Refusals = ()
    media_type: str = "application/json"
    # Of a download, whose query chooses one; JSON is what it gives.
    media_types: tuple[str, ...] = ()
    tool: ToolForm | None = None  # of both sets of tools
    wide: ToolForm | None = None  # of the wider set alone, or of another form there
    examples: tuple[msgspec.Struct, ...] = ()  # of its bodies, one of each type
    malformed: UndecodableRequest | None = None  # what a body that cannot be decoded spends
    # The handler reads the bytes of this body (OpenAPI's form).
    raw: Mapping[str, object] | None = None
    takes_basic: bool = False  # the key may be a password: for clients that can set only a URL
    uploads: bool = False  # the handler receives the body in parts, to put it on disk
    octets_max: int = BODY_OCTETS_MAX
    # False: its path is not found. None: it is always on.
    is_on: Callable[["Service"], bool] | None = None
    # Of the query and the headers, in OpenAPI's form.
    parameters: tuple[Mapping[str, object], ...] = ()

    @property
    def spends_units(self) -> bool:
        """Whether it verifies addresses, and so counts against the caller's limits."""
        return self.key in ("standard", "form") and self.takes is not None

    @property
    def shows_limits(self) -> bool:
        """Whether answers have the limits' headers, and evidence: nothing for a page's visitors."""
        return self.spends_units and self.key == "standard"

    @property
    def counts_malformed(self) -> bool:
        """Whether a malformed request that was JSON costs a unit: a single verification does."""
        return self.malformed is not None and self.malformed.counts_month

    def charge_for_malformed(self, *, was_json: bool) -> UndecodableRequest | None:
        """What a malformed request spends: one of a list a unit of the minute, whatever it was."""
        return None if self.counts_malformed and not was_json else self.malformed

    @property
    def repeatable(self) -> bool:
        return self.media_type != NDJSON

    @property
    def takes_idempotency_key(self) -> bool:
        return self.method == "POST" and self.key not in (None, "form")  # visitors store nothing

    @property
    def refusals(self) -> Refusals:
        full = (StorageFull,) if UsageUnknown in self.may and not self.spends_units else ()
        return (*self.may, *full, *ANYWHERE)
