"""From a request to its answer: every check, in the order that callers rely on.

The route and the method are checked by whoever found the operation (404, 405).
Then: the key (401, 403), Content-Length (413), the body (408, 413, 400), and in
the operation's own transaction hard cap (402), limits (429) and capacity (503).
Every trouble becomes a documented answer here and nowhere else.
"""

import logging
from dataclasses import replace
from typing import Any

import msgspec

from api.auth import authenticate
from api.bodies import check_media_type, parse
from api.errors import body_of, headers_of, row_of
from api.idempotency import check_key, fingerprint, once
from api.limits import BODY_OCTETS_MAX
from api.operations import Operation
from api.refusals import InvalidRequest, OurFault, PayloadTooLarge, Refusal, UsageUnknown
from api.requests import Call, Inbound, Reply
from api.service import Service
from storage.store import StoreUnavailable

log = logging.getLogger("mailprobe.api")

_encode = msgspec.json.Encoder().encode


async def answer(service: Service, operation: Operation, inbound: Inbound) -> Reply:
    """The answer, whatever happens; raises nothing but Cancelled."""
    call = Call(None, inbound.query, inbound.path, sent=inbound.headers)
    try:
        reply = await _answer(service, operation, inbound, call)
    except Refusal as refusal:
        reply = refuse(service, refusal)
    except StoreUnavailable as error:
        log.error("the store cannot be asked: %s", error, extra={"request": inbound.request_id})
        reply = refuse(service, UsageUnknown())
    except Exception:
        log.exception("a bug of ours", extra={"request": inbound.request_id})
        reply = refuse(service, OurFault(inbound.request_id))
    if operation.metered and call.who and not call.headers and reply.status < 500:
        await service.meter.tell_standing(call.who, call.headers)
    log.info("%s %d", operation.name, reply.status, extra={"request": inbound.request_id})
    return replace(reply, headers={**call.headers, **reply.headers})


def refuse(service: Service, refusal: Refusal) -> Reply:
    """The one way in which a refusal becomes an answer."""
    row = row_of(refusal)
    body = _encode(body_of(refusal, service.places))
    return Reply(row.status, body, headers_of(refusal), closes=row.closes)


async def _answer(service: Service, operation: Operation, inbound: Inbound, call: Call) -> Reply:
    if operation.key is not None:
        authorization = inbound.headers.get("authorization")
        call.who = await authenticate(service.store, authorization, operation.key)
    octets = await _read(operation, inbound)

    async def act() -> Reply:
        return await _act(service, operation, inbound, call, octets)

    sent = inbound.headers.get("idempotency-key") if operation.takes_idempotency_key else None
    key = check_key(sent, operation.section, repeatable=operation.repeatable)
    if key is None or call.who is None:
        return await act()
    same = fingerprint(operation.name, str(sorted(inbound.query.items())), octets)
    return await once(service, call.who, key, same, act)


async def _read(operation: Operation, inbound: Inbound) -> bytes:
    """The body's octets, if the operation takes a body; by its length alone where that tells."""
    if operation.takes is None and not operation.raw:
        return b""
    length = inbound.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > BODY_OCTETS_MAX:
        raise PayloadTooLarge(BODY_OCTETS_MAX)
    return await inbound.read()


async def _act(
    service: Service, operation: Operation, inbound: Inbound, call: Call, octets: bytes
) -> Reply:
    """Understand the body and do the work; a refusal is an answer too, and may be kept as one."""
    try:
        call.body = await _understand(operation, inbound, octets)
        return await operation.handler(service, call)
    except InvalidRequest as refusal:
        if operation.counts_malformed and refusal.was_json:
            await service.meter.count_malformed(call.caller, call.headers)
        return refuse(service, refusal)
    except Refusal as refusal:
        return refuse(service, refusal)


async def _understand(operation: Operation, inbound: Inbound, octets: bytes) -> Any:
    if operation.raw:
        return octets
    if operation.takes is None or (not octets and not operation.body_required):
        return None
    check_media_type(inbound.headers.get("content-type"), operation.section)
    return await parse(octets, operation.takes, operation.section)
