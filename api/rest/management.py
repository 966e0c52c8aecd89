"""Management operations of a provisioning key: account, keys, usage, billing portal.

Every query of the store names the caller's own account, so the data of other accounts
is not found.
"""

from datetime import timedelta
from uuid import UUID

from mailprobe.api.keys import key_hash, kind_of, mint, shown
from mailprobe.api.operations.operation import Call, OperationReply, reply
from mailprobe.api.quota.plans import sold_tier
from mailprobe.api.quota.policy import next_month
from mailprobe.api.quota.pricing import eur_up, overage_calls, overage_micros
from mailprobe.api.refusals import (
    InvalidRequest,
    KeyNotFound,
    KeysTooFast,
    NoBillingAccount,
    NoSuchRoute,
    TooManyKeys,
)
from mailprobe.api.schema import (
    AccountLimits,
    BillingPortalRequest,
    CreateKeyRequest,
    ManagementAccountResponse,
    ManagementBillingPortalResponse,
    ManagementCreateKeyResponse,
    ManagementKey,
    ManagementKeysListResponse,
    ManagementUsageResponse,
    ManagementUsageSummaryResponse,
    Period,
    UsageDay,
)
from mailprobe.api.service import Service
from mailprobe.storage import contract
from mailprobe.storage.contract import KeyLimitReached
from mailprobe.storage.records import Caller, Key, KeyKind, Ledger

USAGE_DAYS = 30
VERIFYING: tuple[KeyKind, ...] = ("standard", "test")  # the kinds of keys that verify
KEYS_A_MINUTE = 20  # per account: each key is a row that its retention keeps
WARNING = "Keep this key now: it is shown this once and cannot be read again."


async def get_account(service: Service, call: Call) -> OperationReply:
    """The account, its subscription and its limits."""
    account, plan = call.caller.account, service.plan(call.caller)
    ledger = await service.store.ledger(call.caller)
    return reply(
        200,
        ManagementAccountResponse(
            account_id=UUID(account.id),
            tier=sold_tier(plan.tier),
            limits=AccountLimits(plan.monthly_calls, plan.rate_limit_per_min, plan.max_keys),
            usage_this_month=_used(service, call.caller, ledger),
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


async def list_api_keys(service: Service, call: Call) -> OperationReply:
    """The active live and test keys, oldest first."""
    active = [
        key for key in await service.store.keys(call.caller.account.id) if key.kind in VERIFYING
    ]
    listed = [
        ManagementKey(
            UUID(key.id), key.prefix, key.created_at, key.label,
            kind="test" if key.is_test else "live", last_used_at=key.used_at, made_by=key.made_by,
        )
        for key in active
    ]  # fmt: skip
    live = sum(not key.is_test for key in active)
    return reply(200, ManagementKeysListResponse(listed, live, service.plan(call.caller).max_keys))


async def create_api_key(service: Service, call: Call) -> OperationReply:
    """A new live or test key, shown this once."""
    body: CreateKeyRequest = call.body or CreateKeyRequest()
    keys_max = service.plan(call.caller).max_keys
    if body.test and not service.takes_test_keys:
        raise InvalidRequest(
            "This service is in production, so the field test must be false.",
            "management",
            was_json=True,
        )
    raw = mint("sk_test_" if body.test else "sk_live_", service.draw)

    def created(key: Key) -> OperationReply:
        reported = ManagementCreateKeyResponse(
            UUID(key.id), raw, key.created_at, WARNING, key.label
        )
        return reply(201, reported)

    try:
        key = await service.store.create_key(
            call.caller.account.id,
            kind_of(raw),
            body.label,
            sha256=key_hash(raw),
            prefix=shown(raw),
            keys_max=keys_max,
            keys_per_minute_max=KEYS_A_MINUTE,
            idempotency=call.idempotency,
            answer=lambda key: call.answered(created(key)),
            by=call.actor(service),
        )
    except KeyLimitReached:
        raise TooManyKeys(keys_max) from None
    except contract.KeyCreationTooFast as early:
        raise KeysTooFast(KEYS_A_MINUTE, early.asked_at, early.reset_at, 1) from None
    call.mark_kept()
    return created(key)


async def revoke_api_key(service: Service, call: Call) -> OperationReply:
    """Revoke a live or test key of the account, for good."""
    key_id, account_id = call.path_id(), call.caller.account.id
    if key_id is None:
        raise KeyNotFound
    ours = await service.store.keys(account_id)
    if not any(key.id == key_id and key.kind in VERIFYING for key in ours):
        raise KeyNotFound
    by = call.actor(service)
    if not await service.store.revoke_key(account_id, key_id, by=by):
        raise KeyNotFound  # another request revoked it first
    return OperationReply(204)


async def get_usage(service: Service, call: Call) -> OperationReply:
    """Billable verifications of each of the last 30 UTC days."""
    today = service.now().date()
    first = today - timedelta(days=USAGE_DAYS - 1)
    counted = await service.store.days(call.caller.account.id, first, today)
    calls = {count.day: count.calls for count in counted}
    days = [first + timedelta(days=n) for n in range(USAGE_DAYS)]
    return reply(200, ManagementUsageResponse([UsageDay(day, calls.get(day, 0)) for day in days]))


async def get_usage_summary(service: Service, call: Call) -> OperationReply:
    """This month: used, included, left, beyond, and what that costs."""
    plan = service.plan(call.caller)
    ledger = await service.store.ledger(call.caller)
    used = _used(service, call.caller, ledger)
    end = next_month(ledger.asked_at)
    start = ledger.asked_at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return reply(
        200,
        ManagementUsageSummaryResponse(
            period=Period(start, end),
            calls_used=used,
            calls_included=plan.monthly_calls,
            calls_remaining=max(0, plan.monthly_calls - used),
            overage_calls=overage_calls(plan, used),
            estimated_cost_eur=eur_up(overage_micros(plan, used)),
            tier=sold_tier(plan.tier),
        ),
    )


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
    await service.payments.receive_event(call.body, call.sent.get("stripe-signature", ""))
    return OperationReply(204)


def _used(service: Service, caller: Caller, ledger: Ledger) -> int:
    """This month's units on the free tier, billable verifications on the paid tiers."""
    free = service.plan(caller).monthly_quota is not None
    return ledger.month_units if free else ledger.month_billable
