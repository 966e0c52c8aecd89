"""Pages of other sites (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol), for forms alone.

A publishable key names its origins. Only a response to one of them carries an
Access-Control-Allow-Origin, with that origin and never `*`; credentials are never allowed. A
preflight carries no key, so it passes if any active publishable key names its origin: it gives
away no more than that, and the request that follows is checked with its key.
"""

from math import ceil

from ..forms.origins import is_origin
from ..forms.proof_of_work import Challenge
from ..forms.visitors import CHECKS_PER_MIN, PREFLIGHTS_PER_MIN, network_of
from ..operations.operation import Call, OperationReply
from ..refusals import FormBusy, OriginNotAllowed, ProofRequired
from ..service import Service

VARY = {"Vary": "Origin"}  # also where no origin is allowed: a cache must not mix the answers
PREFLIGHT_KEPT_S = 600  # browsers keep no preflight for longer than some minutes
PREFLIGHT = {
    "Access-Control-Allow-Methods": "POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Form-Proof",
    "Access-Control-Max-Age": str(PREFLIGHT_KEPT_S),
}
NO_ORIGIN = (
    "The request has no Origin header. This route is for web pages, whose browser sends one; a program"
    " on a server takes a standard key (sk_live_…)."
)
EXPOSED = {"Access-Control-Expose-Headers": "Form-Challenge, Retry-After, X-Request-Id"}


def check_origin(call: Call) -> None:
    """Raise OriginNotAllowed if the request comes from no page of the key's sites.

    So does one without an Origin, or with the `null` of a sandboxed frame, a file or a redirect.
    """
    origin = call.headers.get("origin")
    if origin is None:
        raise OriginNotAllowed(NO_ORIGIN)
    if origin not in call.caller.key.origins:
        raise OriginNotAllowed


def solved_challenge(service: Service, call: Call) -> Challenge | None:
    """The challenge that the request has solved; None if forms need no proof of work.

    Raises ProofRequired.
    """
    work = service.proof_of_work
    if work is None:
        return None
    proof, network = call.headers.get("form-proof", ""), network_of(_visitor(service, call))
    solved = work.solved(proof, call.caller.key.id, network, service.now().timestamp())
    if solved is None:
        raise ProofRequired
    return solved


async def use_challenge(service: Service, solved: Challenge) -> None:
    """Use a challenge up. Raises ProofRequired if it was used before, StoreUnavailable."""
    if not await service.store.use_challenge(solved.id, solved.until):
        raise ProofRequired


def page_headers(service: Service, call: Call) -> dict[str, str]:
    """The headers of a response, refusals too: a page of the key's sites may read it.

    Where forms need a proof of work, each has the challenge for the page's next check.
    """
    origin, caller = call.headers.get("origin", ""), call.authenticated
    if caller is None or origin not in caller.key.origins:
        return VARY
    headers = {**VARY, **EXPOSED, "Access-Control-Allow-Origin": origin}
    if work := service.proof_of_work:
        network, now_s = network_of(_visitor(service, call)), service.now().timestamp()
        headers["Form-Challenge"] = work.challenge(caller.key.id, network, now_s)
    return headers


def count_visitor(service: Service, call: Call) -> None:
    """Count a check of the request's visitor. Raises FormBusy."""
    _count(service, call.caller.key.id, call, CHECKS_PER_MIN)


async def answer_preflight(service: Service, call: Call) -> OperationReply:
    """The response to a preflight. Raises FormBusy, OriginNotAllowed, StoreUnavailable."""
    _count(service, "preflight", call, PREFLIGHTS_PER_MIN)
    origin = call.headers.get("origin", "")
    if not is_origin(origin) or not await service.store.is_form_origin(origin):
        raise OriginNotAllowed
    return OperationReply(204, headers={**VARY, **PREFLIGHT, "Access-Control-Allow-Origin": origin})


def _count(service: Service, of: str, call: Call, per_minute: int) -> None:
    wait_s = service.visitors.wait_s(of, _visitor(service, call), per_minute)
    if wait_s:
        raise FormBusy(max(1, ceil(wait_s)))


def _visitor(service: Service, call: Call) -> str:
    return service.visitor(call.client, call.headers.get("x-forwarded-for", ""))
