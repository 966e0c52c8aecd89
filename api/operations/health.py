"""The operation that asks whether the service is up, for proxies and monitors."""

from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from ..schema import says
from ..service import Service
from .operation import Call, Operation, OperationReply, parameter, reply

HEALTH = "/health"


class HealthResponse(Struct, frozen=True, omit_defaults=True):
    """`ok`: the usage store can be written. `ts`: milliseconds since 1970."""

    ok: Annotated[bool, says("The usage store can be written.")]
    ts: Annotated[int, says("Milliseconds since 1970.")]
    drained: Annotated[
        bool, says("True if this machine is drained, so takes no lists; left out otherwise.")
    ] = False


async def health(service: Service, call: Call) -> OperationReply:
    """Is the service up, and can its store be written? With `ready=1`, is it ready for requests?

    Headers show which program it is.
    """
    ok = await service.store_check.ok()
    drained = service.quota.pauses.drained
    state = HealthResponse(ok, int(service.now().timestamp() * 1000), drained)
    headers = service.build.headers() if service.build else {}
    if ok or "1" not in call.query.get("ready", ()):
        return replace(reply(200, state), headers=headers)
    # closed: the proxy's next request takes another service
    return replace(reply(503, state), headers=headers, closes=True)


OPERATIONS = (
    Operation(
        "health", "GET", HEALTH, "Is the service up?",
        health, None, HealthResponse, section="endpoints", unready=HealthResponse,
        parameters=(
            parameter(
                "ready",
                "1: 503, and the connection is closed, where the service cannot serve requests; "
                "for proxies.",
            ),
        ),
        examples=(HealthResponse(True, 1_773_480_413_000),),
    ),
)  # fmt: skip
