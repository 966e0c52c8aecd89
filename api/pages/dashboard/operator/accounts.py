"""The accounts of the service, for its operator: create, plan, keys, usage, delete."""

from collections.abc import Mapping
from datetime import timedelta
from typing import get_args

import msgspec
from quart import Blueprint, Response, request
from werkzeug.exceptions import NotFound

from mailprobe.engine.address import NotAnAddress, parse
from mailprobe.storage.contract import KeyLimitReached
from mailprobe.storage.records import Account, Tier

from ....keys import KINDS, Prefix
from ....operations.keys import CreateKeyRequest
from ....operations.usage import USAGE_DAYS
from ....rest.accounts import account_of_email, make_account, make_key
from ..frame import NOTHING_TYPED, Frame, away, caller, form_fields
from ..keys_page import NO_KEYS, KeyCookie, ShownKeys
from ..overview_page import results_by_day
from ..roles import ACCOUNTS
from ..sign_ins import NO_ADDRESS

PAGE_ACCOUNTS = 50
PAGES_MAX = 10_000  # beyond it a search finds an account
TEXT_CHARACTERS_MAX = 320  # of a search: an address
UNKNOWN_PLAN = "This plan does not exist."
TIERS: tuple[Tier, ...] = get_args(Tier)
PREFIXES: tuple[Prefix, ...] = ("sk_live_", "sk_test_", "sk_mgmt_")
KIND_WORDS = {
    "standard": "live", "test": "test", "provisioning": "manages the account",
    "form": "form", "form_test": "form, test",
}  # fmt: skip


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""
    _register_list(pages, frame)
    _register_account(pages, frame)
    _register_keys(pages, frame)


def _cookie(frame: Frame) -> KeyCookie:
    return KeyCookie(frame.service.store, ACCOUNTS, frame.is_https)


async def _account_of(frame: Frame, account_id: str) -> Account:
    """The account. Raises NotFound, for a deleted one too."""
    account = await frame.service.store.account(account_id) if account_id.isascii() else None
    if account is None or not account.email:
        raise NotFound
    return account


def _register_list(pages: Blueprint, frame: Frame) -> None:
    store = frame.service.store

    @pages.get(ACCOUNTS)
    @frame.for_operators
    async def accounts() -> Response:
        return await shown()

    @pages.post(ACCOUNTS)
    @frame.for_operators
    async def create_account() -> Response:
        """Its keys are shown on the page that this leads to, whose reload makes no other one."""
        form = await form_fields()
        email, tier = form.get("email", "").strip(), _tier_of(form)
        if tier is None:
            return await shown(400, form, UNKNOWN_PLAN)
        try:
            parse(email)
        except NotAnAddress:
            return await shown(400, form, NO_ADDRESS)
        if await account_of_email(store, email):
            return await shown(400, form, "This e-mail address has an account already.")
        made = await make_account(store, email, tier, by=frame.operator())
        keys = ShownKeys(made.key, made.provisioning_key, made.account.id)
        return _cookie(frame).put(away(f"{ACCOUNTS}/{made.account.id}"), caller(), keys)

    async def shown(
        status: int = 200, form: Mapping[str, str] = NOTHING_TYPED, error: str = ""
    ) -> Response:
        text, number = request.args.get("q", "").strip()[:TEXT_CHARACTERS_MAX], _page_number()
        found = await store.find_accounts(
            text, skip=(number - 1) * PAGE_ACCOUNTS, limit=PAGE_ACCOUNTS + 1
        )
        return await frame.page(
            "operator_accounts.html", "Accounts", status, accounts=found[:PAGE_ACCOUNTS],
            text=text, number=number, has_more=len(found) > PAGE_ACCOUNTS, tiers=TIERS,
            email=form.get("email", ""), tier=form.get("tier", ""), error=error,
        )  # fmt: skip


def _page_number() -> int:
    text = request.args.get("page", "")
    if not (text.isascii() and text.isdecimal() and len(text) < 9):
        return 1
    return max(1, min(int(text), PAGES_MAX))


def _tier_of(form: Mapping[str, str]) -> Tier | None:
    return next((tier for tier in TIERS if tier == form.get("tier")), None)


def _register_account(pages: Blueprint, frame: Frame) -> None:
    store, place = frame.service.store, f"{ACCOUNTS}/<id>"

    @pages.get(place)
    @frame.for_operators
    async def account(id: str) -> Response:
        return await _shown_account(frame, await _account_of(frame, id))

    @pages.post(f"{place}/plan")
    @frame.for_operators
    async def change_plan(id: str) -> Response:
        found, tier = await _account_of(frame, id), _tier_of(await form_fields())
        if tier is None:
            return await _shown_account(frame, found, 400, error=UNKNOWN_PLAN)
        await store.change_account(found.id, tier=tier, by=frame.operator())
        return away(f"{ACCOUNTS}/{found.id}")

    @pages.post(f"{place}/delete")
    @frame.for_operators
    async def delete_account(id: str) -> Response:
        """Delete personal data and end running work at once. This cannot be undone."""
        found, typed = await _account_of(frame, id), (await form_fields()).get("email", "").strip()
        if found.id == caller().account.id:
            return await _shown_account(
                frame, found, 400, error="This is the account that you are signed in with."
            )
        if typed.lower() != found.email.lower():
            return await _shown_account(
                frame, found, 400, error="That is another e-mail address: nothing was deleted."
            )
        await store.delete_account(found.id, by=frame.operator())
        return away(ACCOUNTS)


def _register_keys(pages: Blueprint, frame: Frame) -> None:
    store, place = frame.service.store, f"{ACCOUNTS}/<id>/keys"

    @pages.post(f"{ACCOUNTS}/saved")
    @frame.for_operators
    async def account_keys_saved() -> Response:
        made = _cookie(frame).read(caller())
        return _cookie(frame).put(away(f"{ACCOUNTS}/{made.account_id}"), caller(), NO_KEYS)

    @pages.post(place)
    @frame.for_operators
    async def make_account_key(id: str) -> Response:
        found, form = await _account_of(frame, id), await form_fields()
        prefix = next((each for each in PREFIXES if each == form.get("kind")), None)
        if prefix is None or (prefix == "sk_test_" and not frame.service.takes_test_keys):
            return await _shown_account(frame, found, 400, form, "There is no such kind of key.")
        label = form.get("label", "").strip() or None
        try:
            msgspec.convert({"label": label}, CreateKeyRequest)
        except msgspec.ValidationError:
            return await _shown_account(frame, found, 400, form, "This label cannot be used.")
        keys_max = None if prefix == "sk_mgmt_" else frame.service.plans[found.tier].max_keys
        try:
            key, _ = await make_key(
                store, found.id, prefix, label, keys_max=keys_max, by=frame.operator()
            )
        except KeyLimitReached:
            words = f"The account has all {keys_max} keys of its plan: revoke one that is not used."
            return await _shown_account(frame, found, 400, form, words)
        keys = ShownKeys(key, account_id=found.id)
        return _cookie(frame).put(away(f"{ACCOUNTS}/{found.id}"), caller(), keys)

    @pages.post(f"{place}/<key>/revoke")
    @frame.for_operators
    async def revoke_account_key(id: str, key: str) -> Response:
        found = await _account_of(frame, id)
        if key.lower() == caller().key.id:
            return await _shown_account(frame, found, 400, error="You are signed in with this key.")
        if not await store.revoke_key(found.id, key.lower(), by=frame.operator()):
            raise NotFound
        return away(f"{ACCOUNTS}/{found.id}")


async def _shown_account(
    frame: Frame,
    found: Account,
    status: int = 200,
    form: Mapping[str, str] = NOTHING_TYPED,
    error: str = "",
) -> Response:
    service, today, made = frame.service, frame.service.now().date(), _cookie(frame).read(caller())
    first = min(today.replace(day=1), today - timedelta(days=USAGE_DAYS - 1))
    counted = await service.store.days(found.id, first, today)
    days = results_by_day(counted, today - timedelta(days=USAGE_DAYS - 1))
    return await frame.page(
        "operator_account.html", found.email, status, account=found, error=error,
        plan=service.plans[found.tier], tiers=TIERS,
        made=made if made.account_id == found.id else NO_KEYS,
        month=sum(each.calls for each in counted if each.day.month == today.month),
        days=[each for each in reversed(days) if each.total],
        keys=await service.store.keys(found.id), kind_words=KIND_WORDS,
        kinds=[(each, KIND_WORDS[KINDS[each]]) for each in PREFIXES if each != "sk_test_" or service.takes_test_keys],
        label=form.get("label", ""), kind=form.get("kind", "sk_live_"),
        is_own=found.id == caller().account.id,
    )  # fmt: skip
