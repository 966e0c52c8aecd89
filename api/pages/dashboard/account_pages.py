"""The pages of the account: signing in, the overview, keys, caps."""

import re
from collections.abc import Mapping
from typing import Any, get_args
from uuid import UUID

import msgspec
from quart import Blueprint, Response, g, request

from mailprobe.api.forms.script import script_tag
from mailprobe.api.http.exchange import admission_of
from mailprobe.api.keys import PUBLISHABLE, key_hash, kind_of, mint
from mailprobe.api.keys import shown as shown_key
from mailprobe.api.pages.dashboard.form_keys import is_wanted, make_form_key, revoke_form_key
from mailprobe.api.pages.dashboard.frame import (
    HOME,
    SIGN_IN,
    Frame,
    at_most_once,
    away,
    caller,
    form_fields,
)
from mailprobe.api.pages.dashboard.health import Trouble, trouble_of
from mailprobe.api.pages.dashboard.sessions import BROWSER_COOKIE, Session
from mailprobe.api.pages.dashboard.shown_keys import NO_KEYS, KeyCookie, ShownKeys
from mailprobe.api.pages.dashboard.start_page import START, key_cookie
from mailprobe.api.quota.plans import MICROS_PER_EUR, sold_tier
from mailprobe.api.quota.pricing import eur_up, micros_of, overage_micros
from mailprobe.api.refusals import Refusal
from mailprobe.api.schema import (
    CreateKeyRequest,
    ManagementCreateKeyResponse,
    ManagementKeysListResponse,
    ManagementUsageResponse,
    ManagementUsageSummaryResponse,
)
from mailprobe.engine.address import NotAnAddress, parse
from mailprobe.storage.commands import NewKey
from mailprobe.storage.records import Account, Actor, SoldTier, Tier
from mailprobe.storage.store import Store

KEYS = f"{HOME}/keys"
CAPS = ("soft", "hard")
NOTHING_TYPED: Mapping[str, str] = {}
BAD_LABEL = "This label cannot be used: it has more than 100 characters, or one that is not shown."


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""
    _register_sign_in(pages, frame)
    _register_overview(pages, frame)
    _register_keys(pages, frame)
    _register_caps(pages, frame)


def _register_sign_in(pages: Blueprint, frame: Frame) -> None:
    store = frame.service.store

    @pages.get(SIGN_IN)
    async def sign_in() -> Response:
        return await frame.page("sign_in.html", "Sign in", next=_next_of(request.args))

    @pages.post(SIGN_IN)
    async def enter() -> Response:
        admission_of(request.scope).admitted()
        if not frame.is_same_site():
            return await frame.error(403, "This form comes from another site.", "Sign in here.")
        known_account = frame.sessions.account_of_browser(request.cookies.get(BROWSER_COOKIE))
        if not frame.sign_ins.try_enter(frame.visitor(), known_account):
            return await frame.error(
                429, "There were too many attempts to sign in.", "Wait a minute, then try again."
            )
        form = await form_fields()
        try:
            known = await frame.sessions.caller_of_key(form.get("key", ""))
        except Refusal:
            tried = key_hash(form.get("key", "").strip())
            await store.record_failed_sign_in(tried, known_account, frame.actor())
            return await frame.page(
                "sign_in.html", "Sign in", 401, next=_next_of(form),
                error="That is no active provisioning key (sk_mgmt_…).",
            )  # fmt: skip
        await store.record_sign_in(known.account.id, frame.actor(known))
        return frame.with_cookie(away(_next_of(form)), known)

    @pages.post(f"{HOME}/sign-out")
    @frame.signed_in
    async def sign_out() -> Response:
        session: Session = g.session
        await frame.sessions.end(session, frame.service.now(), frame.actor(session.caller))
        response = away(SIGN_IN)
        response.delete_cookie(
            frame.cookie, path="/", httponly=True, samesite="Lax", secure=frame.is_https
        )
        for cookie in (key_cookie(frame), KeyCookie(frame.service.store, KEYS, frame.is_https)):
            cookie.put(response, caller(), NO_KEYS)
        return response

    # Where plans are sold, only the operator's command makes an account that pays nothing.
    takes_own = frame.service.payments is None

    @pages.get(f"{HOME}/welcome")
    async def welcome() -> Response:
        token = request.args.get("token", "")
        if not await frame.sessions.is_welcome(token):
            return await _not_welcome()
        return await frame.page(
            "welcome.html", "Welcome", token=token, takes_own=takes_own, own=True
        )

    @pages.post(f"{HOME}/welcome")
    async def begin() -> Response:
        admission_of(request.scope).admitted()
        form = await form_fields()
        token, email = form.get("token", ""), form.get("email", "").strip()
        if not (frame.is_same_site() and await frame.sessions.is_welcome(token)):
            return await _not_welcome()
        own = takes_own and form.get("own") == "on"
        tier: Any = form.get("tier", "free")
        if tier not in get_args(SoldTier):
            return await frame.error(400, "There is no such plan.", "Choose one of the form.")
        try:
            parse(email)
        except NotAnAddress:
            return await frame.page(
                "welcome.html", "Welcome", 400, token=token, email=email, tier=tier,
                takes_own=takes_own, own=own, error="That is no e-mail address.",
            )  # fmt: skip
        made = await _first_account(store, email, "own" if own else tier, frame.actor())
        if made is None:
            return await _not_welcome()
        known = await store.caller(key_hash(made["provisioning_key"]))
        assert known is not None
        await store.record_sign_in(known.account.id, frame.actor(known))
        response = key_cookie(frame).put(
            away(START), known, ShownKeys(made["key"], made["provisioning_key"])
        )
        return frame.with_cookie(response, known)

    async def _not_welcome() -> Response:
        return await frame.error(
            404,
            "This link is not good any more: it makes the first account, once.",
            "Sign in with a provisioning key.",
        )


def _next_of(values: Mapping[str, str]) -> str:
    """Where to go after the sign-in: a page of the dashboard, whatever was sent."""
    wanted = values.get("next", HOME)
    is_ours = re.fullmatch(r"/dashboard(/[A-Za-z0-9-]+)*", wanted, re.ASCII)
    return wanted if is_ours and not wanted.startswith(SIGN_IN) else HOME


def _register_overview(pages: Blueprint, frame: Frame) -> None:
    @pages.get(HOME)
    @frame.signed_in
    async def overview() -> Response:
        return await frame.page("overview.html", "Overview", **await values())

    @pages.get(f"{HOME}/trouble")
    @frame.signed_in
    async def trouble() -> Response:
        """What is wrong now; the overview fetches it again and again."""
        return await frame.page("trouble.html", "What is wrong now", trouble=await found())

    async def found() -> list[Trouble]:
        is_operator = frame.is_operator(caller())
        return await trouble_of(frame.service, caller().account.id, names_hosts=is_operator)

    async def values() -> dict[str, Any]:
        account = caller().account
        usage = await frame.result_of(ManagementUsageSummaryResponse, "get_usage_summary")
        days = (await frame.result_of(ManagementUsageResponse, "get_usage")).days
        plan = frame.service.plan(caller())
        start, end, used = usage.period.start, usage.period.end, usage.calls_used
        passed_s = max(1.0, (frame.service.now() - start).total_seconds())
        projected = round(used * max(1.0, (end - start).total_seconds() / passed_s))
        return {
            "account": account,
            "plan": plan,
            "usage": usage,
            "share": min(100, round(100 * used / max(1, usage.calls_included))),
            "projected": projected,
            "projected_eur": eur_up(overage_micros(plan, projected)),
            "days": days,
            "soft_cap": _euros(account.soft_cap_micros),
            "hard_cap": _euros(account.hard_cap_micros),
            "trouble": await found(),
        }


def _register_keys(pages: Blueprint, frame: Frame) -> None:
    cookie = KeyCookie(frame.service.store, KEYS, frame.is_https)

    @pages.get(KEYS)
    @frame.signed_in
    async def keys() -> Response:
        return await shown()

    @pages.post(KEYS)
    @frame.signed_in
    async def make_key() -> Response:
        """A reload of the page that this leads to makes no second key."""
        form = await form_fields()
        if is_wanted(form):
            key = await make_form_key(frame.service, caller(), form, frame.actor(caller()))
            return cookie.put(away(KEYS), caller(), ShownKeys(key))
        fields = {
            "label": form.get("label", "").strip() or None,
            "test": form.get("kind") == "test",
        }
        try:
            body = msgspec.convert(fields, CreateKeyRequest)
        except msgspec.ValidationError:
            return await shown(400, form, error=BAD_LABEL)
        made = await frame.result_of(
            ManagementCreateKeyResponse, "create_api_key", body, sent=at_most_once(form, body)
        )
        return cookie.put(away(KEYS), caller(), ShownKeys(made.key))

    @pages.post(f"{KEYS}/saved")
    @frame.signed_in
    async def key_saved() -> Response:
        return cookie.put(away(KEYS), caller(), NO_KEYS)

    @pages.post(f"{KEYS}/<id>/revoke")
    @frame.signed_in
    async def revoke_key(id: str) -> Response:
        by = frame.actor(caller())
        if not await revoke_form_key(frame.service, caller().account.id, id, by):
            await frame.perform("revoke_api_key", id=id)
        return away(KEYS)

    async def shown(
        status: int = 200, form: Mapping[str, str] = NOTHING_TYPED, error: str = ""
    ) -> Response:
        made = cookie.read(caller())
        is_of_form = made.key.startswith(PUBLISHABLE)
        listed = await frame.result_of(ManagementKeysListResponse, "list_api_keys")
        known = await frame.service.store.keys(caller().account.id)
        return await frame.page(
            "keys.html", "Keys", status, made=made, listed=listed, error=error,
            label=form.get("label", ""), is_test=form.get("kind") == "test",
            test_keys={UUID(key.id) for key in known if key.is_test},
            takes_test_keys=frame.service.takes_test_keys,
            form_keys=[key for key in known if key.is_publishable],
            tag=script_tag(frame.service.links.base_url, made.key) if is_of_form else "",
        )  # fmt: skip


def _register_caps(pages: Blueprint, frame: Frame) -> None:
    @pages.get(f"{HOME}/caps")
    @frame.signed_in
    async def caps() -> Response:
        return await shown(_typed_of(caller().account), caller().account.alerts)

    @pages.post(f"{HOME}/caps")
    @frame.signed_in
    async def set_caps() -> Response:
        form = await form_fields()
        typed = {name: form.get(name, "").strip() for name in CAPS}
        alerts = form.get("alerts") == "on"
        micros, errors = caps_of(typed)
        if errors:
            return await shown(typed, alerts, 400, errors=errors)
        changed = await frame.service.store.change_account(
            caller().account.id, alerts=alerts, by=frame.actor(caller()),
            **{f"{name}_cap_micros": micros[name] for name in CAPS},
        )  # fmt: skip
        assert changed is not None
        return await shown(_typed_of(changed), changed.alerts, saved=True)

    async def shown(
        typed: Mapping[str, str], alerts: bool, status: int = 200, **more: Any
    ) -> Response:
        return await frame.page(
            "caps.html", "Limits", status, typed=typed, alerts=alerts,
            email=caller().account.email, plan=frame.service.plan(caller()),
            **{"errors": {}, **more},
        )  # fmt: skip


def _typed_of(account: Account) -> dict[str, str]:
    return {"soft": _euros(account.soft_cap_micros), "hard": _euros(account.hard_cap_micros)}


def caps_of(typed: Mapping[str, str]) -> tuple[dict[str, int | None], dict[str, str]]:
    """The caps in micro-euros by what was typed, and what is wrong with each field."""
    micros: dict[str, int | None] = {}
    errors = {}
    for name in CAPS:
        try:
            micros[name] = _micros(typed[name])
        except ValueError as error:
            errors[name] = str(error)
    soft, hard = micros.get("soft"), micros.get("hard")
    if soft is not None and hard is not None and soft > hard:
        errors["soft"] = "The soft cap is above the hard cap, so its mail would never come."
    return micros, errors


def _euros(micros: int | None) -> str:
    """Euros for a form; empty without a cap."""
    return "" if micros is None else f"{micros / MICROS_PER_EUR:.2f}"


def _micros(text: str) -> int | None:
    """Micro-euros of what was typed; None if it is empty. Raises ValueError with the reason."""
    text = text.strip().replace(",", ".")
    if not text:
        return None
    try:
        return micros_of(text)
    except ValueError:
        raise ValueError(f"“{text[:20]}” is no amount in euros, such as 25 or 12.50.") from None


async def _first_account(store: Store, email: str, tier: Tier, by: Actor) -> dict[str, Any] | None:
    """Create the first account with a key of each kind; None if there is one."""
    key, provisioning_key = mint("sk_live_"), mint("sk_mgmt_")
    keys = [NewKey(kind_of(raw), key_hash(raw), shown_key(raw)) for raw in (key, provisioning_key)]
    made = await store.create_first_account(email, tier, keys, by=by)
    if made is None:
        return None
    return {
        "account_id": made.id, "tier": sold_tier(made.tier),
        "key": key, "provisioning_key": provisioning_key,
    }  # fmt: skip
