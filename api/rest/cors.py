"""Pages of other sites (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol), for forms alone.

A publishable key names its origins. Only a response to one of them carries an
Access-Control-Allow-Origin, with that origin and never `*`; credentials are never allowed. A
preflight carries no key, so it passes if any active publishable key names its origin: it gives
away no more than that, and the request that follows is checked with its key.
"""

from math import ceil

from mailprobe.storage.records import Caller, Key

from ..forms.origins import is_origin
from ..forms.proof_of_work import Challenge
from ..forms.visitors import CHECKS_PER_MIN, PREFLIGHTS_PER_MIN, network_of
from ..operations.operation import Inbound, OperationReply
from ..refusals import FormBusy, OriginNotAllowed, ProofRequired
from ..service import Service

VARY = {"Vary": "Origin"}  # also where no origin is allowed: a cache must not mix the answers
PREFLIGHT_KEPT_S = 600  # browsers keep no preflight for longer than some minutes
PREFLIGHT = {
    "Access-Control-Allow-Methods": "POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Form-Proof",
    "Access-Control-Max-Age": str(PREFLIGHT_KEPT_S),
}
EXPOSED = {"Access-Control-Expose-Headers": "Form-Challenge, Retry-After, X-Request-Id"}


def check_origin(key: Key, inbound: Inbound) -> None:
    """Raise OriginNotAllowed if the request comes from no page of the key's sites.

    So does one without an Origin, or with the `null` of a sandboxed frame, a file or a redirect.
    """
    if inbound.headers.get("origin", "") not in key.origins:
        raise OriginNotAllowed


def solved_challenge(service: Service, key: Key, inbound: Inbound) -> Challenge | None:
    """The challenge that the request has solved; None if forms need no proof of work.

    Raises ProofRequired.
    """
    work = service.proof_of_work
    if work is None:
        return None
    proof, network = inbound.headers.get("form-proof", ""), network_of(_visitor(service, inbound))
    solved = work.solved(proof, key.id, network, service.now().timestamp())
    if solved is None:
        raise ProofRequired
    return solved


async def use_challenge(service: Service, solved: Challenge) -> None:
    """Use a challenge up. Raises ProofRequired if it was used before, StoreUnavailable."""
    if not await service.store.use_challenge(solved.id, solved.until):
        raise ProofRequired


def page_headers(service: Service, caller: Caller | None, inbound: Inbound) -> dict[str, str]:
    """The headers of a response, refusals too: a page of the key's sites may read it.

    Where forms need a proof of work, each has the challenge for the page's next check.
    """
    origin = inbound.headers.get("origin", "")
    if caller is None or origin not in caller.key.origins:
        return VARY
    headers = {**VARY, **EXPOSED, "Access-Control-Allow-Origin": origin}
    if work := service.proof_of_work:
        network, now_s = network_of(_visitor(service, inbound)), service.now().timestamp()
        headers["Form-Challenge"] = work.challenge(caller.key.id, network, now_s)
    return headers


def count_visitor(service: Service, key: Key, inbound: Inbound) -> None:
    """Count a check of the request's visitor. Raises FormBusy."""
    _count(service, key.id, inbound, CHECKS_PER_MIN)


async def answer_preflight(service: Service, inbound: Inbound) -> OperationReply:
    """The response to a preflight. Raises FormBusy, OriginNotAllowed, StoreUnavailable."""
    _count(service, "preflight", inbound, PREFLIGHTS_PER_MIN)
    origin = inbound.headers.get("origin", "")
    if not is_origin(origin) or not await service.store.is_form_origin(origin):
        raise OriginNotAllowed
    return OperationReply(204, headers={**VARY, **PREFLIGHT, "Access-Control-Allow-Origin": origin})


def _count(service: Service, of: str, inbound: Inbound, per_minute: int) -> None:
    wait_s = service.visitors.wait_s(of, _visitor(service, inbound), per_minute)
    if wait_s:
        raise FormBusy(max(1, ceil(wait_s)))


def _visitor(service: Service, inbound: Inbound) -> str:
    return service.visitor(inbound.client, inbound.headers.get("x-forwarded-for", ""))
