"""A test key for the examples of the documentation, made when a reader who is signed in asks.

The store has its hash only, so the reader's browser keeps it, as it keeps new keys of the
dashboard. A later one takes its place, and the one before is revoked.
"""

from contextlib import suppress

from quart import Blueprint, Response, request

from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.records import Caller

from ...http.received_request import admission_of
from ...keys import key_hash
from ...operations.keys import CreateKeyRequest, ManagementCreateKeyResponse
from ...refusals import KeyNotFound
from .. import documents
from ..examples import SignedInReader
from .frame import HOME, Frame, away, caller, form_fields
from .keys_page import KeyCookie, ShownKeys
from .roles import may
from .sign_ins import COOKIE, SIGN_IN_S

KEY_FORM = f"{HOME}/documentation-key"
LABEL = "Documentation"


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the route."""

    @pages.post(KEY_FORM)
    @frame.signed_in
    async def documentation_key() -> Response:
        for key in await frame.service.store.keys(caller().account.id):
            if key.is_test and key.label == LABEL:
                with suppress(KeyNotFound):  # another click was faster
                    await frame.perform("revoke_api_key", id=key.id)
        made = await frame.result_of(
            ManagementCreateKeyResponse,
            "create_api_key",
            CreateKeyRequest(label=LABEL, test=True),
        )
        page = (await form_fields()).get("page", "")
        known = page if page in documents.names() else documents.HOME
        response = away(documents.url_of(known))
        return _cookie(frame).put(response, caller(), ShownKeys(made.key))


async def reader_of(frame: Frame) -> SignedInReader | None:
    """The signed-in reader of the requested page; None without one, or without the store."""
    if (cookie := request.cookies.get(COOKIE)) is None:
        return None
    admission_of(request.scope).admitted()
    try:
        sign_in = await frame.sign_ins.sign_in_of(cookie)
        if sign_in is None:
            return None
        key = _cookie(frame).read(sign_in.caller).key
        is_good = bool(key) and isinstance(await frame.service.store.caller(key_hash(key)), Caller)
    except StoreUnavailable:
        return None
    takes = frame.service.takes_test_keys and may(sign_in.role, f"POST {KEY_FORM}")
    return SignedInReader(sign_in.csrf, key if is_good else "", takes)


def _cookie(frame: Frame) -> KeyCookie:
    return KeyCookie(frame.service.store, documents.ROOT, frame.is_https, SIGN_IN_S)
