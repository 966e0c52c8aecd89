"""Request dispatch: every check of a request, in the order that clients rely on.

The caller has checked route and method (404, 405). Then follow: the key (401, 403), a form's
origin (403), proof of work (428) and visitor (429), Content-Length (413), the body (408, 413,
400), and in the operation's own transaction hard cap (402), limits (429) and capacity (503). Every error becomes a documented
response here and nowhere else.
"""

import logging
from collections.abc import Mapping
from functools import partial

import msgspec
from msgspec.structs import replace

from mailprobe.storage.contract import StoreFull, StoreUnavailable

from ..error_table import body_of, headers_of, row_of
from ..observability.request_context import (
    UNROUTED,
    line_limit,
    present,
)
from ..operations.operation import (
    Act,
    Call,
    Operation,
    OperationReply,
    StreamedLines,
)
from ..quota.charge import charge
from ..quota.limits import LimitsLeft
from ..refusals import (
    InvalidRequest,
    NoSuchRoute,
    OurFault,
    PayloadTooLarge,
    Refusal,
    StorageFull,
    UnsupportedCoding,
    UsageUnknown,
)
from ..schema import AddressBody
from ..service import Service
from .auth import authenticate
from .cors import (
    VARY,
    answer_preflight,
    check_origin,
    count_visitor,
    page_headers,
    solved_challenge,
    use_challenge,
)
from .decoding import check_media_type, parse
from .idempotency import check_key, fingerprint, make_repeatable, perform_once

log = logging.getLogger("mailprobe.api")

TEST_KEYS = "sk_test_ "
BASIC = {"WWW-Authenticate": 'Bearer, Basic realm="mailprobe"'}  # RFC 7617 2
CODING_SHOWN_MAX = 40  # characters repeated in the response


async def answer(service: Service, operation: Operation, call: Call) -> OperationReply:
    """Perform an operation and return its reply, a refusal included. Raises only Cancelled.

    The transport has opened the request's context.
    """
    request_context = present()
    assert request_context is not None
    request_context.operation = operation.name
    try:
        reply = await _answer_or_refuse(service, operation, call)
    finally:
        request_context.caller = call.authenticated
        request_context.addresses = _addresses_in(call.body)
    request_context.status = reply.status
    if isinstance(reply.body, StreamedLines):
        service.request_log.streams()
        request_context.count_lines(0)
    return reply


async def _answer_or_refuse(service: Service, operation: Operation, call: Call) -> OperationReply:
    try:
        reply = await _answer(service, operation, call)
    except Refusal as refusal:
        reply = refuse(service, refusal)
    except StoreUnavailable as error:
        if times := line_limit().times("store unavailable", operation.name):
            counted = {"times": times} if times > 1 else {}
            log.error(
                "store unavailable: operation=%s error=%s", operation.name, error, extra=counted
            )
        reply = refuse(service, refusal_of_store(error, operation))
    except Exception:
        log.exception("request failed: operation=%s request=%s", operation.name, call.request_id)
        reply = refuse(service, OurFault(call.request_id))
    if operation.takes_basic and "WWW-Authenticate" in reply.headers:
        reply = replace(reply, headers={**reply.headers, **BASIC})  # SNS waits to be asked
    limits = await _limits_after(service, operation, call, reply)
    more = limits.headers() if limits else {}
    if operation.key == "form":
        more = page_headers(service, call)
    return replace(reply, headers={**more, **reply.headers}) if more else reply


def refusal_of_store(error: StoreUnavailable, operation: Operation | None = None) -> Refusal:
    """What an unavailable store is to a client.

    A full disk has the same name wherever it is met. Only an operation that verifies says of any
    failure of the store that the quota cannot be checked.
    """
    spends = operation is not None and operation.spends_units
    return StorageFull() if isinstance(error, StoreFull) and not spends else UsageUnknown()


async def _limits_after(
    service: Service, operation: Operation, call: Call, reply: OperationReply
) -> LimitsLeft | None:
    """What is left of the limits, as the charge saw it; without a charge it is looked up."""
    if not operation.shows_limits:
        return None
    if call.charge is not None and call.charge.limits is not None:
        return call.charge.limits
    if call.authenticated is None or reply.status >= 500:
        return None
    return await service.quota.limits_of(call.authenticated)


def refuse(service: Service, refusal: Refusal) -> OperationReply:
    """Convert a refusal into a reply; all refusals pass here."""
    row = row_of(refusal)
    if (request_context := present()) is not None:
        request_context.code = row.code
    body = msgspec.json.encode(body_of(refusal, service.links))
    return OperationReply(row.status, body, headers_of(refusal), closes=row.closes)


async def _answer(service: Service, operation: Operation, call: Call) -> OperationReply:
    if operation.is_on is not None and not operation.is_on(service):
        raise NoSuchRoute
    if operation.key is not None:
        call.authenticated = await authenticate(
            service.store,
            call.headers.get("authorization"),
            operation.key,
            takes_test_keys=service.takes_test_keys,
            takes_basic=operation.takes_basic,
        )
        call.admission.identified(call.authenticated.account.id)
        service.key_uses.note(call.authenticated.key, service.now())
        if operation.key == "form":
            check_origin(call)
            solved = solved_challenge(service, call)
            count_visitor(service, call)
            if solved is not None:
                await use_challenge(service, solved)
    octets = await _read(service, operation, call)
    act = partial(_dispatch, service, operation, call, octets)
    return await _admit(service, operation, call, octets, act)


async def preflight(service: Service, call: Call) -> OperationReply:
    """Answer a browser that asks whether a page may call the route of forms."""
    try:
        return await answer_preflight(service, call)
    except (Refusal, StoreUnavailable) as error:
        reply = refuse(service, error if isinstance(error, Refusal) else UsageUnknown())
        return replace(reply, headers={**VARY, **reply.headers})


async def perform(service: Service, operation: Operation, call: Call) -> OperationReply:
    """Perform an operation for a page: its caller is known without a key, and its body is decoded.

    The page's log line names the first operation that it performs. Raises Refusal.
    """
    request_context = present()
    assert request_context is not None
    if request_context.operation == UNROUTED:
        request_context.operation = operation.name
    request_context.caller = call.authenticated
    request_context.addresses += _addresses_in(call.body)
    if operation.is_on is not None and not operation.is_on(service):
        raise NoSuchRoute
    octets = b"" if call.body is None else msgspec.json.encode(call.body)
    return await _admit(service, operation, call, octets, partial(operation.handler, service, call))


async def _admit(
    service: Service, operation: Operation, call: Call, octets: bytes, act: Act
) -> OperationReply:
    """Run `act`, at most once if the request has an idempotency key. Raises Refusal."""
    if not operation.spends_units:
        call.admission.admitted()  # it reserves no units, so it leaves the admission queue now
    key = call.headers.get("idempotency-key")
    if key is None or call.authenticated is None or not operation.takes_idempotency_key:
        return await act()
    check_key(key, operation.section, repeatable=operation.repeatable)
    name = operation.name
    if call.authenticated.key.is_test:  # a live request never gets the answer of a test
        key, name = f"{TEST_KEYS}{key}", f"{TEST_KEYS}{name}"
    query = str(sorted(call.query.items()))
    if operation.uploads:
        make_repeatable(service, call, key, name, query)
        return await act()
    return await perform_once(service, call, key, fingerprint(name, query, octets), act)


async def _read(service: Service, operation: Operation, call: Call) -> bytes:
    """Read the body if the operation takes one. Raises Refusal, by the headers alone if possible."""
    if operation.uploads:
        check_head(call.headers, service.list_limits.octets_max)
        return b""
    if operation.takes is None and not operation.raw:
        return b""
    check_head(call.headers, operation.octets_max)
    return await call.read(operation.octets_max)


def check_head(headers: Mapping[str, str], octets_max: int) -> None:
    """Raise the Refusal of a body that its headers rule out, before any of it is read."""
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > octets_max:
        raise PayloadTooLarge(octets_max)
    coding = headers.get("content-encoding", "").strip()
    if coding.lower() not in ("", "identity"):
        raise UnsupportedCoding(coding[:CODING_SHOWN_MAX])


async def _dispatch(
    service: Service, operation: Operation, call: Call, octets: bytes
) -> OperationReply:
    """Decode the body and run the handler. A refusal is a reply too, and may be stored as one."""
    try:
        call.body = await _decode_body(operation, call, octets)
        return await operation.handler(service, call)
    except InvalidRequest as refusal:
        reply = refuse(service, refusal)
        spending = operation.charge_for_malformed(was_json=refusal.was_json)
        if spending is not None:
            charged = call.charge = charge(service.quota, call.caller, spending, call.admission)
            async with charged:
                charged.first = call.first_answer(reply) if spending.counts_month else None
            if charged.is_counted and spending.counts_month:
                call.mark_kept()
        return reply
    except Refusal as refusal:
        return refuse(service, refusal)


async def _decode_body(operation: Operation, call: Call, octets: bytes) -> object:
    if operation.raw:
        return octets
    if operation.takes is None or (not octets and not operation.body_required):
        return None
    check_media_type(call.headers.get("content-type"), operation.section)
    account_id = "" if call.authenticated is None else call.authenticated.account.id
    return await parse(octets, operation.takes, operation.section, account_id)


def _addresses_in(body: object) -> int:
    return len(body.texts()) if isinstance(body, AddressBody) else 0
