"""The page of keys: lists them, makes them, and shows a new one once.

The store has only the hashes of keys, and the page that shows a new one is another request (after
a redirect, so that a reload makes no second key), perhaps of another process. So the browser that
asked for the key carries it there, in a cookie that scripts cannot read. It is signed with its
sign-in's key, so that no other site can plant keys of its own. Other pages that make keys do the same.

Secret keys are made and revoked by the management API, publishable keys in the store: the API has
no operation for them.
"""

from collections.abc import Mapping
from datetime import timedelta

import msgspec
from itsdangerous import BadData, URLSafeTimedSerializer
from quart import Blueprint, Response, request
from werkzeug.exceptions import NotFound

from mailprobe.storage.contract import KEY_USE_EVERY, KeyCreationTooFast, KeyLimitReached
from mailprobe.storage.records import Caller
from mailprobe.storage.store import Store

from ...forms.origins import RATE_DEFAULT, RATE_MAX, read_origins
from ...forms.script import script_tag
from ...keys import PUBLISHABLE, key_hash, kind_of, mint, shown
from ...operations.keys import (
    CreateKeyRequest,
    ManagementCreateKeyResponse,
    ManagementKeysListResponse,
)
from ...quota.plans import UNLIMITED
from ...refusals import KeysTooFast, TooManyKeys
from .frame import HEADERS, HOME, NOTHING_TYPED, Frame, at_most_once, away, caller, form_fields
from .sign_ins import SIGNER

KEYS = f"{HOME}/keys"
COOKIE = "mailprobe_shown"
KEPT_S = 3600  # a reload shows a new key again, until it is saved
USES_STORED_WITHIN = timedelta(minutes=2)  # they are stored every minute
# A fresh key has a fresh minute; sites are few, so no one needs more.
FORM_KEYS_A_MINUTE = 5
BAD_SITES = "A site is written like https://shop.example.org, without a path; ten at most."
BAD_LABEL = "This label cannot be used: it has more than 100 characters, or one that is not shown."


class ShownKeys(msgspec.Struct, frozen=True):
    """What is shown; the provisioning key only with the first keys of an account."""

    key: str = ""
    provisioning_key: str = ""
    account_id: str = ""  # whose they are, where the operator made them


NO_KEYS = ShownKeys()


class KeyCookie:
    """The cookie of the page at `path`."""

    def __init__(self, store: Store, path: str, is_https: bool, kept_s: int = KEPT_S) -> None:
        self._path, self._is_https, self._kept_s = path, is_https, kept_s
        secret = store.derived_key("shown keys")
        self._signed = URLSafeTimedSerializer(secret, path, signer_kwargs=SIGNER)

    def put(self, response: Response, caller: Caller, keys: ShownKeys) -> Response:
        """Let the page show these keys; without any, forget those before."""
        if keys == NO_KEYS:
            response.delete_cookie(COOKIE, path=self._path, httponly=True, samesite="Lax")
            return response
        value = self._signed.dumps({"by": caller.key.id, **msgspec.to_builtins(keys)})
        response.set_cookie(
            COOKIE, value, max_age=self._kept_s, path=self._path,
            httponly=True, samesite="Lax", secure=self._is_https,
        )  # fmt: skip
        return response

    def read(self, caller: Caller) -> ShownKeys:
        """The keys that this sign-in's page has to show; none are the usual case."""
        cookie = request.cookies.get(COOKIE)
        if not cookie:
            return NO_KEYS
        try:
            words: Mapping[str, str] = self._signed.loads(cookie, max_age=self._kept_s)
        except BadData:
            return NO_KEYS
        if words.get("by") != caller.key.id:
            return NO_KEYS
        return ShownKeys(*(words.get(name, "") for name in ShownKeys.__struct_fields__))


def env_file(base_url: str, keys: ShownKeys) -> Response:
    """A download of the keys for programs."""
    headers = {**HEADERS, "Content-Disposition": 'attachment; filename="mailprobe.env"'}
    return Response(env_of(base_url, keys), headers=headers, content_type="text/plain")


def env_of(base_url: str, keys: ShownKeys) -> str:
    """The keys for programs, as a file of environment variables."""
    lines = [f"MAILPROBE_SERVER={base_url}", f"MAILPROBE_KEY={keys.key}"]
    if keys.provisioning_key:
        lines += [
            "# It opens the dashboard and manages the account; programs that verify need it not.",
            f"MAILPROBE_PROVISIONING_KEY={keys.provisioning_key}",
        ]
    return "\n".join([*lines, ""])


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""
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
        is_publishable = form.get("kind", "").startswith(PUBLISHABLE)
        try:
            key = await (_make_publishable if is_publishable else _make_secret)(frame, form)
        except WrongField as wrong:
            return await _shown_keys(frame, cookie, 400, form, errors={wrong.name: str(wrong)})
        return cookie.put(away(KEYS), caller(), ShownKeys(key))

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
        if not await _revoke_publishable(frame, id):
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
    by = caller()
    made = cookie.read(by)
    is_of_form = made.key.startswith(PUBLISHABLE)
    listed = await frame.result_of(ManagementKeysListResponse, "list_api_keys")
    known = await frame.service.store.keys(by.account.id)
    return await frame.page(
        "keys.html", "API keys", status, made=made, listed=listed, errors=errors,
        typed=form, unlimited=UNLIMITED, rate_default=RATE_DEFAULT, rate_max=RATE_MAX,
        takes_test_keys=frame.service.takes_test_keys,
        secret_keys=[key for key in known if not key.is_publishable],
        form_keys=[key for key in known if key.is_publishable],
        used_now=frame.service.now() - KEY_USE_EVERY - USES_STORED_WITHIN,
        tag=script_tag(frame.service.links.base_url, made.key) if is_of_form else "",
    )  # fmt: skip


class WrongField(Exception):
    """A field of the form cannot be used; the text is a sentence for a person."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


def _request_of(form: Mapping[str, str]) -> CreateKeyRequest:
    """The fields label and kind. Raises WrongField."""
    label = form.get("label", "").strip() or None
    try:
        return msgspec.convert(
            {"label": label, "test": form.get("kind") == "test"}, CreateKeyRequest
        )
    except msgspec.ValidationError:
        raise WrongField("label", BAD_LABEL) from None


async def _make_secret(frame: Frame, form: Mapping[str, str]) -> str:
    """Make a live or a test key. Raises WrongField, Refusal, StoreUnavailable."""
    body = _request_of(form)
    made = await frame.result_of(
        ManagementCreateKeyResponse, "create_api_key", body, sent=at_most_once(form, body)
    )
    return made.key


async def _make_publishable(frame: Frame, form: Mapping[str, str]) -> str:
    """Make a key from the fields kind, label, origins and rate.

    Raises WrongField, Refusal, StoreUnavailable.
    """
    service, is_test = frame.service, form["kind"] == "pk_test_"
    rate = form.get("rate", "").strip() or str(RATE_DEFAULT)
    is_number = rate.isascii() and rate.isdigit() and len(rate) <= len(str(RATE_MAX))
    if not is_number or not 1 <= int(rate) <= RATE_MAX:
        raise WrongField("rate", f"The checks a minute are a whole number, 1 to {RATE_MAX:,}.")
    if is_test and not service.takes_test_keys:
        raise WrongField("kind", "This service is in production: it takes no test keys.")
    try:
        origins = read_origins(form.get("origins", "").split())
    except ValueError:
        raise WrongField("origins", BAD_SITES) from None
    label, account = _request_of(form).label, caller().account
    keys_max = service.plans[account.tier].max_keys
    raw = mint("pk_test_" if is_test else "pk_live_")
    try:
        await service.store.create_key(
            account.id, kind_of(raw), label, sha256=key_hash(raw), prefix=shown(raw),
            keys_max=keys_max, keys_per_minute_max=FORM_KEYS_A_MINUTE,
            origins=origins, rate_per_min=int(rate), by=frame.actor(caller()),
        )  # fmt: skip
    except KeyLimitReached:
        raise TooManyKeys(keys_max) from None
    except KeyCreationTooFast as early:
        raise KeysTooFast(FORM_KEYS_A_MINUTE, early.asked_at, early.reset_at, 1) from None
    return raw


async def _revoke_publishable(frame: Frame, key_id: str) -> bool:
    """Revoke the account's publishable key; False if it has no such one. Raises StoreUnavailable."""
    account_id = caller().account.id
    keys = await frame.service.store.keys(account_id)
    if not any(key.id == key_id and key.is_publishable for key in keys):
        return False
    return await frame.service.store.revoke_key(account_id, key_id, by=frame.actor(caller()))
