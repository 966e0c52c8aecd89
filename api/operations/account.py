"""The operation on the account: its tier, limits and subscription. A provisioning key is needed."""

from typing import Annotated
from uuid import UUID

from msgspec import Struct

from mailprobe.storage.records import SoldTier

from ..quota.plans import sold_tier
from ..schema import Instant, says
from ..service import Service
from .examples import ID
from .operation import (
    MANAGING,
    Call,
    Operation,
    OperationReply,
    ToolForm,
    ToolText,
    reply,
)
from .usage import used_this_month


class AccountLimits(Struct, frozen=True):
    """What the account's tier allows."""

    monthly_calls: Annotated[int, says("Free: the quota of a month. Paid: the included volume.")]
    rate_limit_per_min: Annotated[int, says("Units a minute, of each key.")]
    max_keys: Annotated[int, says("How many live keys there may be.")]


class ManagementAccountResponse(Struct, frozen=True):
    """The account, its subscription at the billing provider, and its limits."""

    account_id: Annotated[UUID, says("The id of the account.")]
    tier: Annotated[SoldTier, says("The tier, which decides limits and price.")]
    limits: Annotated[AccountLimits, says("What the tier allows.")]
    usage_this_month: Annotated[
        int, says("Units of this UTC month; of paid tiers billable verifications.")
    ]
    subscription_status: Annotated[
        str | None, says("The subscription's status at the billing provider.")
    ] = None
    current_period_end: Annotated[Instant | None, says("The end of the billing period.")] = None
    cancel_at_period_end: Annotated[bool | None, says("The subscription ends with its period.")] = (
        None
    )
    canceled_at: Annotated[Instant | None, says("When the subscription was cancelled.")] = None
    cancel_at: Annotated[Instant | None, says("When the subscription will end.")] = None
    trial_start: Annotated[Instant | None, says("The start of the trial.")] = None
    trial_end: Annotated[Instant | None, says("The end of the trial.")] = None
    billing_cycle_anchor: Annotated[
        Instant | None, says("The instant from which billing periods are counted.")
    ] = None


async def get_account(service: Service, call: Call) -> OperationReply:
    """The account, its subscription and its limits."""
    account = call.caller.account
    plan = service.plans[account.tier]
    ledger = await service.store.ledger(call.caller)
    return reply(
        200,
        ManagementAccountResponse(
            account_id=UUID(account.id),
            tier=sold_tier(plan.tier),
            limits=AccountLimits(plan.monthly_calls, plan.rate_limit_per_min, plan.max_keys),
            usage_this_month=used_this_month(plan, ledger),
            subscription_status=account.subscription_status,
            current_period_end=account.current_period_end,
            cancel_at_period_end=account.cancel_at_period_end,
            canceled_at=account.canceled_at,
            cancel_at=account.cancel_at,
            trial_start=account.trial_start,
            trial_end=account.trial_end,
            billing_cycle_anchor=account.billing_cycle_anchor,
        ),
    )


OPERATIONS = (
    Operation(
        "get_account", "GET", "/v1/management/account", "The account, its tier and its limits",
        get_account, "provisioning", ManagementAccountResponse, may=MANAGING,
        tool=ToolForm(
        ToolText(
        "The account", "The account's tier, its limits, its usage this month, its subscription.",
        only_reads=True, repeats_freely=True,
    )
        ),
        examples=(ManagementAccountResponse(ID, "builder", AccountLimits(5_000, 100, 10), 1_234),),
    ),
)  # fmt: skip
