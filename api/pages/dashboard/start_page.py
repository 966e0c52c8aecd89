"""The first keys, and the first three steps with them, which tick themselves off."""

from dataclasses import dataclass

from quart import Blueprint, Response, request
from werkzeug.exceptions import NotFound

from mailprobe.storage.records import Caller, Key

from ...operations.keys import CreateKeyRequest, ManagementCreateKeyResponse
from ...operations.list_jobs import ListResponse, ListsResponse
from ...refusals import KeyNotFound
from ...sandbox.addresses import DOMAIN
from .frame import HEADERS, HOME, LISTS_PAGE, Frame, away, caller
from .shown_keys import KeyCookie, ShownKeys
from .try_page import curl_of

START = f"{HOME}/start"
KEY_VARIABLE = "$MAILPROBE_KEY"
SAMPLE = "Sample list"  # the label of its key
# One address for each verdict that a list of customers meets.
SAMPLE_NAMES = (
    *("deliverable", "free", "role", "typo", "catch_all", "greylisted"),
    *("full", "undeliverable", "disposable", "no_mx"),
)
ROWS_SEEN = 20  # of the log of usage: refused requests may stand before the first good one


@dataclass(frozen=True, slots=True)
class Steps:
    """Which of the steps are done."""

    verify: bool
    sample: bool
    assistant: bool

    @property
    def count(self) -> int:
        return self.verify + self.sample + self.assistant


def key_cookie(frame: Frame) -> KeyCookie:
    """The cookie of the keys that the page shows."""
    return KeyCookie(frame.service.store, START, frame.is_https)


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""
    cookie = key_cookie(frame)

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
