"""The pages of the account: its making, keys, caps."""

from collections.abc import Mapping
from datetime import timedelta
from typing import get_args

import msgspec
from quart import Blueprint, Response, request
from werkzeug.exceptions import NotFound

from mailprobe.engine.address import NotAnAddress, parse
from mailprobe.storage.accounts import NewKey
from mailprobe.storage.contract import KEY_USE_EVERY
from mailprobe.storage.records import Account, Actor, SoldTier, Tier
from mailprobe.storage.store import Store

from ...alerts.thresholds import TEST
from ...forms.origins import RATE_DEFAULT, RATE_MAX
from ...forms.script import script_tag
from ...http.received_request import admission_of
from ...keys import PUBLISHABLE, key_hash, kind_of, mint
from ...keys import shown as shown_key
from ...operations.keys import (
    CreateKeyRequest,
    ManagementCreateKeyResponse,
    ManagementKeysListResponse,
)
from ...quota.plans import MICROS_PER_EUR, UNLIMITED, micros_of
from .form_keys import (
    BAD_LABEL,
    WrongField,
    is_wanted,
    make_form_key,
    revoke_form_key,
)
from .frame import (
    HOME,
    NOTHING_TYPED,
    Frame,
    at_most_once,
    away,
    caller,
    form_fields,
    is_operator,
)
from .shown_keys import NO_KEYS, KeyCookie, ShownKeys
from .sign_ins import NO_ADDRESS
from .start_page import START, env_file, key_cookie

KEYS = f"{HOME}/keys"
USES_STORED_WITHIN = timedelta(minutes=2)  # they are stored every minute
CAPS_PAGE = f"{HOME}/caps"
CAPS = ("soft", "hard")
# Of an account, the newest: it has at most ten in a period, and a test mail a minute.
ALERTS_SEEN = 20
SOLD_TIERS: tuple[SoldTier, ...] = get_args(SoldTier)[::-1]  # the largest first


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""
    _register_welcome(pages, frame)
    _register_keys(pages, frame)
    _register_caps(pages, frame)


def _register_welcome(pages: Blueprint, frame: Frame) -> None:
    """The first account, made by the link that the first start prints."""
    store = frame.service.store
    # Where plans are sold, only the operator's command makes an account that pays nothing.
    takes_own = frame.service.payments is None

    @pages.get(f"{HOME}/welcome")
    async def welcome() -> Response:
        token = request.args.get("token", "")
        if not await frame.sign_ins.is_welcome(token):
            return await not_welcome()
        return await frame.page(
            "welcome.html", "Welcome", token=token, tiers=SOLD_TIERS, takes_own=takes_own, own=True
        )

    @pages.post(f"{HOME}/welcome")
    async def begin() -> Response:
        admission_of(request.scope).admitted()
        form = await form_fields()
        token, email = form.get("token", ""), form.get("email", "").strip()
        if not (frame.is_same_site() and await frame.sign_ins.is_welcome(token)):
            return await not_welcome()
        own = takes_own and form.get("own") == "on"
        tier = next((each for each in SOLD_TIERS if each == form.get("tier", "free")), None)
        if tier is None:
            return await frame.error(400, "There is no such plan.", "Choose one of the form.")
        try:
            parse(email)
        except NotAnAddress:
            return await frame.page(
                "welcome.html", "Welcome", 400, token=token, email=email, tier=tier, tiers=SOLD_TIERS,
                takes_own=takes_own, own=own, error=NO_ADDRESS,
            )  # fmt: skip
        made = await _first_account(store, email, "own" if own else tier, frame.actor())
        if made is None:
            return await not_welcome()
        known = await store.caller(key_hash(made.provisioning_key))
        assert known is not None
        return await frame.begin(known, key_cookie(frame).put(away(START), known, made))

    async def not_welcome() -> Response:
        return await frame.error(
            404,
            "This link is not good any more: it makes the first account, once.",
            "Sign in with a provisioning key.",
        )


def _register_keys(pages: Blueprint, frame: Frame) -> None:
    cookie = KeyCookie(frame.service.store, KEYS, frame.is_https)

    @pages.get(KEYS)
    @frame.signed_in
    async def keys() -> Response:
        return await _shown_keys(frame, cookie)

    @pages.post(KEYS)
    @frame.signed_in
    async def make_key() -> Response:
        """A reload of the page that this leads to makes no second key."""
        form = await form_fields()
        if is_wanted(form):
            try:
                key = await make_form_key(frame.service, caller(), form, frame.actor(caller()))
            except WrongField as wrong:
                return await _shown_keys(frame, cookie, 400, form, errors={wrong.name: str(wrong)})
            return cookie.put(away(KEYS), caller(), ShownKeys(key))
        fields = {
            "label": form.get("label", "").strip() or None,
            "test": form.get("kind") == "test",
        }
        try:
            body = msgspec.convert(fields, CreateKeyRequest)
        except msgspec.ValidationError:
            return await _shown_keys(frame, cookie, 400, form, errors={"label": BAD_LABEL})
        made = await frame.result_of(
            ManagementCreateKeyResponse, "create_api_key", body, sent=at_most_once(form, body)
        )
        return cookie.put(away(KEYS), caller(), ShownKeys(made.key))

    @pages.get(f"{KEYS}/made.env")
    @frame.signed_in
    async def made_env() -> Response:
        made = cookie.read(caller())
        if not made.key:
            raise NotFound
        return env_file(frame.service.links.base_url, made)

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


async def _shown_keys(
    frame: Frame,
    cookie: KeyCookie,
    status: int = 200,
    form: Mapping[str, str] = NOTHING_TYPED,
    *,
    errors: Mapping[str, str] = NOTHING_TYPED,
) -> Response:
    """The keys, and the form that makes one, with what was typed in it."""
    made = cookie.read(caller())
    is_of_form = made.key.startswith(PUBLISHABLE)
    listed = await frame.result_of(ManagementKeysListResponse, "list_api_keys")
    known = await frame.service.store.keys(caller().account.id)
    return await frame.page(
        "keys.html", "API keys", status, made=made, listed=listed, errors=errors,
        typed=form, unlimited=UNLIMITED, rate_default=RATE_DEFAULT, rate_max=RATE_MAX,
        takes_test_keys=frame.service.takes_test_keys,
        secret_keys=[key for key in known if not key.is_publishable],
        form_keys=[key for key in known if key.is_publishable],
        used_now=frame.service.now() - KEY_USE_EVERY - USES_STORED_WITHIN,
        tag=script_tag(frame.service.links.base_url, made.key) if is_of_form else "",
    )  # fmt: skip


def _register_caps(pages: Blueprint, frame: Frame) -> None:
    @pages.get(CAPS_PAGE)
    @frame.signed_in
    async def caps() -> Response:
        account, saved = caller().account, request.args.get("saved") == "1"
        return await _shown_caps(frame, _typed_of(account), account.alerts, saved=saved)

    @pages.post(CAPS_PAGE)
    @frame.signed_in
    async def set_caps() -> Response:
        form = await form_fields()
        typed = {name: form.get(name, "").strip() for name in CAPS}
        alerts = form.get("alerts") == "on"
        micros, errors = caps_of(typed)
        if errors:
            return await _shown_caps(frame, typed, alerts, 400, errors=errors)
        changed = await frame.service.store.change_account(
            caller().account.id, alerts=alerts, by=frame.actor(caller()),
            **{f"{name}_cap_micros": micros[name] for name in CAPS},
        )  # fmt: skip
        assert changed is not None
        return away(f"{CAPS_PAGE}?saved=1")

    @pages.post(f"{CAPS_PAGE}/test")
    @frame.signed_in
    async def send_test() -> Response:
        if _sends_to(frame, caller().account):
            assert frame.service.alerts is not None
            await frame.service.alerts.send_test(caller())
        return away(CAPS_PAGE)

    @pages.get(f"{CAPS_PAGE}/test")
    @frame.signed_in
    async def test_mail() -> Response:
        """How far the test mail is; its page fetches this again until it is sent."""
        return await frame.page("alert_test.html", "Limits", **await _test_values(frame))


def _sends_to(frame: Frame, account: Account) -> bool:
    """Whether alerts of this account are sent at all."""
    return account.alerts and account.tier != "own" and frame.sends_mail


async def _test_values(frame: Frame) -> dict[str, object]:
    account = caller().account
    recent = await frame.service.store.messages("alert", account_id=account.id, limit=ALERTS_SEEN)
    tests = (each for each in recent if each.name.startswith(TEST))
    return {
        "sends": _sends_to(frame, account), "test": next(tests, None), "email": account.email,
        "is_operator": is_operator(),
    }  # fmt: skip


async def _shown_caps(
    frame: Frame, typed: Mapping[str, str], alerts: bool, status: int = 200, **more: object
) -> Response:
    return await frame.page(
        "caps.html", "Limits", status, typed=typed, alerts=alerts,
        plan=frame.service.plan(caller()), has_relay=frame.sends_mail,
        **await _test_values(frame), **{"errors": {}, **more},
    )  # fmt: skip


def _typed_of(account: Account) -> dict[str, str]:
    return {"soft": euros_of(account.soft_cap_micros), "hard": euros_of(account.hard_cap_micros)}


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


def euros_of(micros: int | None) -> str:
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


async def _first_account(store: Store, email: str, tier: Tier, by: Actor) -> ShownKeys | None:
    """Create the first account with a key of each kind; None if there is one."""
    key, provisioning_key = mint("sk_live_"), mint("sk_mgmt_")
    keys = [NewKey(kind_of(raw), key_hash(raw), shown_key(raw)) for raw in (key, provisioning_key)]
    made = await store.create_first_account(email, tier, keys, by=by)
    if made is None:
        return None
    return ShownKeys(key, provisioning_key)
