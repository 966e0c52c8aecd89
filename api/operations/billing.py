"""The operations on billing: the portal of the account's owner, and the provider's events."""

from typing import Annotated

from msgspec import Meta, Struct

from ..refusals import NoBillingAccount, NoSuchRoute, ProviderUnavailable
from ..schema import says
from ..service import Service
from .operation import (
    BODIED,
    MANAGING,
    REPEATABLE,
    Call,
    Operation,
    OperationReply,
    ToolForm,
    ToolText,
    reply,
)

URL_CHARACTERS_MAX = 2048
# In Python "$" also matches before a final line end; in JSON Schema it does not.
HTTP_URL = r"^https?://[!-~]+$(?!\n)"
EVENT_OCTETS_MAX = 256 * 1024  # of Stripe's, which have a few KiB; anyone may send them
BILLING_EVENT = {"application/json": {
    "schema": {"type": "object", "description": "An event of the billing provider."},
    "example": {"id": "evt_1", "object": "event", "type": "customer.subscription.updated"},
}}  # fmt: skip


class BillingPortalRequest(Struct, frozen=True):
    """The http or https URL to which the billing portal returns."""

    return_url: Annotated[
        Annotated[str, Meta(pattern=HTTP_URL, max_length=URL_CHARACTERS_MAX)] | None,
        says("An http or https URL."),
    ] = None


class ManagementBillingPortalResponse(Struct, frozen=True):
    """The URL where the account's owner sees invoices and changes the plan."""

    url: Annotated[
        str,
        Meta(extra_json_schema={"format": "uri"}),
        says("The address of the billing portal; whoever has it is signed in."),
    ]


async def create_billing_portal(service: Service, call: Call) -> OperationReply:
    """Where the bills are, made on demand."""
    body: BillingPortalRequest = call.body or BillingPortalRequest()
    if service.payments is None:
        raise NoBillingAccount
    url = await service.payments.portal_url(call.caller.account, body.return_url)
    if url is None:
        raise NoBillingAccount
    return reply(200, ManagementBillingPortalResponse(url))


def receives_billing_events(service: Service) -> bool:
    return service.payments is not None and service.payments.receives_events


async def receive_billing_event(service: Service, call: Call) -> OperationReply:
    """A signed event of the billing provider, which updates the account's subscription."""
    if service.payments is None:
        raise NoSuchRoute
    await service.payments.receive_event(call.body, call.headers.get("stripe-signature", ""))
    return OperationReply(204)


PORTAL = Operation(
    "create_billing_portal", "POST", "/v1/management/billing/portal", "Open the billing portal",
    create_billing_portal, "provisioning", ManagementBillingPortalResponse,
    takes=BillingPortalRequest, body_required=False,
    may=(*MANAGING, *BODIED, *REPEATABLE, NoBillingAccount, ProviderUnavailable),
    tool=ToolForm(
        ToolText(
        "Open the billing portal",
        "Create a link to the billing portal, where the account's owner sees invoices and "
        "changes plan or payment. The link grants access: give it to the person only.",
        reaches_out=True,
    ),
        BillingPortalRequest,
        {"return_url": {"format": "uri", "description": "The http or https URL to which the portal returns."}},
    ),
    examples=(
        BillingPortalRequest("https://shop.example.org/account"),
        ManagementBillingPortalResponse("https://billing.example.org/session/1"),
    ),
)  # fmt: skip
EVENTS = Operation(
    "take_billing_event", "POST", "/v1/billing/stripe", "Receive an event of the billing provider",
    receive_billing_event, None, None, 204, section="endpoints",
    may=(*BODIED, ProviderUnavailable), raw=BILLING_EVENT, octets_max=EVENT_OCTETS_MAX,
    is_on=receives_billing_events,
)  # fmt: skip
