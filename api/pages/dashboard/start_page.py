"""The first account with its first keys, and the first three steps with them, which tick themselves off."""

from typing import get_args

from msgspec import Struct
from quart import Blueprint, Response, request
from werkzeug.exceptions import NotFound

from mailprobe.engine.address import NotAnAddress, parse
from mailprobe.storage.accounts import NewKey
from mailprobe.storage.records import Actor, Caller, Key, SoldTier, Tier
from mailprobe.storage.store import Store

from ...http.received_request import admission_of
from ...keys import key_hash, kind_of, mint, shown
from ...operations.keys import CreateKeyRequest, ManagementCreateKeyResponse
from ...operations.list_jobs import ListResponse, ListsResponse
from ...refusals import KeyNotFound
from ...sandbox.addresses import DOMAIN
from .frame import HOME, LISTS_PAGE, Frame, away, caller, form_fields
from .keys_page import KeyCookie, ShownKeys, env_file
from .sign_ins import NO_ADDRESS
from .try_page import curl_of

START = f"{HOME}/start"
KEY_VARIABLE = "$MAILPROBE_KEY"
SAMPLE = "Sample list"  # the label of its key
# One address for each verdict that a list of customers meets.
SAMPLE_NAMES = (
    *("deliverable", "free", "role", "typo", "catch_all", "greylisted"),
    *("full", "undeliverable", "disposable", "no_mx"),
)
SOLD_TIERS: tuple[SoldTier, ...] = get_args(SoldTier)[::-1]  # the largest first
ROWS_SEEN = 20  # of the log of usage: refused requests may stand before the first good one


class Steps(Struct, frozen=True):
    """Which of the steps are done."""

    verify: bool
    sample: bool
    assistant: bool

    @property
    def count(self) -> int:
        return self.verify + self.sample + self.assistant


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""
    cookie = KeyCookie(frame.service.store, START, frame.is_https)
    _register_welcome(pages, frame, cookie)
    _register_steps(pages, frame, cookie)


def _register_welcome(pages: Blueprint, frame: Frame, cookie: KeyCookie) -> None:
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
            return await frame.error(400, "This plan does not exist.", "Choose one in the form.")
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
        return await frame.begin(known, cookie.put(away(START), known, made))

    async def not_welcome() -> Response:
        return await frame.error(
            404,
            "This link no longer works: it makes the first account, once.",
            "Sign in with a provisioning key.",
        )


async def _first_account(store: Store, email: str, tier: Tier, by: Actor) -> ShownKeys | None:
    """Create the first account with a key of each kind; None if there is one."""
    key, provisioning_key = mint("sk_live_"), mint("sk_mgmt_")
    keys = [NewKey(kind_of(raw), key_hash(raw), shown(raw)) for raw in (key, provisioning_key)]
    made = await store.create_first_account(email, tier, keys, by=by)
    if made is None:
        return None
    return ShownKeys(key, provisioning_key)


def _register_steps(pages: Blueprint, frame: Frame, cookie: KeyCookie) -> None:
    @pages.get(START)
    @frame.signed_in
    async def start() -> Response:
        keys = cookie.read(caller())
        if keys.provisioning_key:
            return await frame.page("begun.html", "Your keys", keys=keys)
        key, base_url = keys.key or KEY_VARIABLE, frame.service.links.base_url
        return await frame.page(
            "start.html", "First steps", steps=await steps_of(frame), has_key=bool(keys.key),
            curl=curl_of(base_url, caller().account.email, key),
            assistant=assistant_line(frame.service.tools_url, key),
            takes_test_keys=frame.service.takes_test_keys,
        )  # fmt: skip

    @pages.get(f"{START}/ticks")
    @frame.signed_in
    async def ticks() -> Response:
        """What is done; the page fetches it again and again.

        It says what it knows of the assistant, which another process may have answered.
        """
        return await frame.page("ticks.html", "First steps", steps=await steps_of(frame))

    @pages.get(f"{START}/keys.env")
    @frame.signed_in
    async def first_env() -> Response:
        keys = cookie.read(caller())
        if not keys.provisioning_key:
            raise NotFound
        return env_file(frame.service.links.base_url, keys)

    @pages.post(f"{START}/saved")
    @frame.signed_in
    async def saved() -> Response:
        """The live key stays for the steps' lines; the one that opens the account does not."""
        return cookie.put(away(START), caller(), ShownKeys(cookie.read(caller()).key))

    @pages.post(f"{START}/sample")
    @frame.signed_in
    async def sample() -> Response:
        return away(f"{LISTS_PAGE}/{await _new_sample(frame)}")


async def steps_of(frame: Frame) -> Steps:
    """Which of the first steps the account has done."""
    account_id, store = caller().account.id, frame.service.store
    used = await store.usage(account_id, limit=ROWS_SEEN)
    lists = (await frame.result_of(ListsResponse, "list_lists")).lists
    return Steps(
        any(row.status is not None for row in used),
        any(each.status == "done" for each in lists),
        account_id in frame.service.assistants or request.args.get("assistant") == "1",
    )


async def _new_sample(frame: Frame) -> str:
    """Make the sample list, and return its id. Raises Refusal."""
    by = Caller(caller().account, await _sample_key(frame))
    rows = [sample_list()]

    async def receive() -> bytes:
        return rows.pop() if rows else b""

    made = await frame.result_of(
        ListResponse, "create_list", by=by, receive=receive,
        query={"name": ["sample.csv"], "column": ["email"]}, sent={"content-type": "text/csv"},
    )  # fmt: skip
    return made.list_id


async def _sample_key(frame: Frame) -> Key:
    """The test key of the sample list, made at its first use. Raises Refusal."""
    if (key := await _found_sample_key(frame)) is None:
        body = CreateKeyRequest(label=SAMPLE, test=True)
        await frame.result_of(ManagementCreateKeyResponse, "create_api_key", body)
        key = await _found_sample_key(frame)
    if key is None:  # it was revoked in the meantime
        raise KeyNotFound
    return key


async def _found_sample_key(frame: Frame) -> Key | None:
    ours = await frame.service.store.keys(caller().account.id)
    return next((key for key in ours if key.is_test and key.label == SAMPLE), None)


def sample_list() -> bytes:
    """A list for the test key: a verdict of each kind, without a packet."""
    lines = [f"{name.replace('_', ' ')},{name}@{DOMAIN}" for name in SAMPLE_NAMES]
    return "\n".join(["name,email", *lines, ""]).encode()


def assistant_line(tools_url: str, key: str) -> str:
    """The line that adds the tool server to an assistant; empty without a tool server."""
    if not tools_url:
        return ""
    return (
        f"claude mcp add --transport http mailprobe {tools_url}/mcp"
        f' --header "Authorization: Bearer {key}"'
    )
