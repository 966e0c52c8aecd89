"""Every refusal of the API: one table, run at each operation and by each transport that can give it.

The transports are HTTP, the live socket, the tools at /mcp and /mcp/all, and the dashboard. An
operation declares its refusals; a case is run at each operation that declares its own.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

import pytest
import trio
from msgspec import structs

from mailprobe.api import refusals
from mailprobe.api.error_table import TABLE
from mailprobe.api.forms.visitors import CHECKS_PER_MIN
from mailprobe.api.keys import mint
from mailprobe.api.operations.keys import KEYS_A_MINUTE
from mailprobe.api.operations.table import OPERATIONS
from mailprobe.api.quota import list_limits
from mailprobe.api.quota.list_limits import BOUNDS, ListLimits
from mailprobe.api.quota.plans import PLANS
from mailprobe.api.quota.self_protection import SelfProtection
from mailprobe.api.refusals import Refusal
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.storage.contract import StoreFull
from tests.api.lists.test_lists import LISTS, send
from tests.api.refusals.transports import (
    BY_NAME,
    EMAIL,
    PAGES,
    Refused,
    Request,
    Spoils,
    World,
    open_world,
    refused_by,
    unspoiled,
)
from tests.api.service_fixture import FORM_ORIGIN, KilledProcess, LazyApp

Patch = pytest.MonkeyPatch
Arranges = Callable[[World, Patch], Awaitable[None]]

WINDOW = frozenset({"limit", "window", "reset_at"})
MONTH = frozenset({"limit", "used", "reset_at"})
CAP = frozenset({"hard_cap_eur", "current_overage_eur"})
UNAUTHORIZED, BROKEN = Refused(401, "-32001"), Refused(500, "-32603")  # of the tool server
VERIFIES = ("verify_email", "verify_batch", "verify_stream")
STANDARD = tuple(each.name for each in OPERATIONS if each.key == "standard")
MANY = 11  # addresses: more than the free tier's minute


async def nothing(world: World, patch: Patch) -> None:
    """A good service."""


# -- what an account has used up ------------------------------------------------------------------


async def reach_the_cap(world: World, patch: Patch) -> None:
    await world.shop.use_up(5_000)
    await world.shop.change(hard_cap_micros=0)


async def use_up_the_minute(world: World, patch: Patch) -> None:
    assert (await world.shop.batch(*["x"] * 10)).status == 200


async def use_up_the_month(world: World, patch: Patch) -> None:
    await world.shop.use_up(1, units=500)


async def make_all_keys(world: World, patch: Patch) -> None:
    assert (await world.shop.manage("POST", "/keys")).status == 201


async def make_keys_fast(world: World, patch: Patch) -> None:
    made = [(await world.shop.manage("POST", "/keys")).status for _ in range(KEYS_A_MINUTE)]
    assert made[0] == 201


async def have_many_callbacks(world: World, patch: Patch) -> None:
    patch.setattr("mailprobe.api.quota.charge.JOBS_UNDELIVERED_MAX", 0)


async def have_a_list_under_way(world: World, patch: Patch) -> None:
    patch.setattr(ListLimits, "active_max", 1)


async def keep_many_lists(world: World, patch: Patch) -> None:
    patch.setattr(list_limits, "BOUNDS", structs.replace(BOUNDS, active_max=1, kept_max=1))
    patch.setattr(ListLimits, "active_max", 1)
    assert (await world.shop.request("POST", f"{LISTS}/{world.list_id}/cancel")).status == 200


async def send_lists_fast(world: World, patch: Patch) -> None:
    """One a day: virtual time passes while lists are read, and a minute would be over."""
    patch.setattr("mailprobe.storage.list_jobs.lists.WINDOW", timedelta(days=1))
    patch.setattr(list_limits, "BOUNDS", structs.replace(BOUNDS, per_minute_max=1))
    await send(world.shop)


async def have_no_room_for_lists(world: World, patch: Patch) -> None:
    plans = {**PLANS, "builder": structs.replace(PLANS["builder"], lists_mib=0)}
    world.shop.service = structs.replace(world.shop.service, plans=plans)
    world.shop.app = LazyApp(world.shop.service)


async def check_often(world: World, patch: Patch) -> None:
    for _ in range(CHECKS_PER_MIN):
        await world.rest("verify_form", with_body({"email": "no address"}))


# -- trouble of the service -------------------------------------------------------------------------


async def lose_the_store(world: World, patch: Patch) -> None:
    world.shop.store.away = True


async def lose_the_ledger(world: World, patch: Patch) -> None:
    world.shop.store.away = {"reserve"}


async def fill_the_disk(world: World, patch: Patch) -> None:
    world.shop.store.away, world.shop.store.unavailable = True, StoreFull


async def have_a_bug(world: World, patch: Patch) -> None:
    world.shop.store.throwing.add("caller")
    world.portal.refusal = ArithmeticError("a bug")


async def be_blind(world: World, patch: Patch) -> None:
    protection = world.shop.service.quota.protection
    protection.blind = True
    protection.lets_pass("request", "other")  # one in a while passes, to find out


async def lose_the_provider(world: World, patch: Patch) -> None:
    world.portal.refusal = refusals.ProviderUnavailable()


async def have_no_billing(world: World, patch: Patch) -> None:
    world.portal.url = None


async def forget_the_list(world: World, patch: Patch) -> None:
    world.list_id = ""


async def have_standard_keys_alone(world: World, patch: Patch) -> None:
    world.shop.provisioning = world.shop.key


async def have_provisioning_keys_alone(world: World, patch: Patch) -> None:
    world.shop.key = world.shop.provisioning


async def keep_no_answers(world: World, patch: Patch) -> None:
    patch.setattr("mailprobe.storage.idempotency.ANSWER_OCTETS_MAX", 1)


# -- what happens before a request ------------------------------------------------------------------


async def do_another(world: World, request: Request) -> None:
    """With the same idempotency key."""
    key = {"idempotency-key": request.headers["idempotency-key"]}
    assert (await world.shop.batch("x", headers=key)).status == 200


async def do_it_once(world: World, request: Request) -> None:
    assert (await world.answer(request)).status < 300


async def be_killed_in_it(world: World, request: Request) -> None:
    """The same request, killed when it has begun and done nothing."""
    calls = world.shop.store.calls
    calls.clear()
    for moments in range(20):
        killed = KilledProcess(moments)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(killed.run, lambda: world.answer(request))
            await killed.killed.wait()
            nursery.cancel_scope.cancel()
        if calls[-1:] == ["begin_idempotent"]:
            return
    raise AssertionError("it did not begin")


async def be_busy(world: World, request: Request) -> None:
    """Another address keeps the service busy. Its host is a new one: no answer of it is known."""
    domain = f"{request.operation.name.replace('_', '-')}.test"
    world.shop.world.add(domain, MailHost(latency_s=0.9))
    world.nursery.start_soon(world.shop.verify, f"known@{domain}")
    await trio.sleep(0.1)


# -- what makes a request bad -----------------------------------------------------------------------


def with_key(key: str | None, **headers: str | None) -> Spoils:
    return lambda request: replace(request, key=key).with_headers(**headers)


def with_headers(**headers: str | None) -> Spoils:
    return lambda request: request.with_headers(**headers)


def with_body(body: object) -> Spoils:
    return lambda request: request.with_body(body)


def slowly(request: Request) -> Request:
    """A body that keeps the least rate of an upload, and takes longer than any may."""
    if request.operation.uploads:
        # Twice as long: a thread writes each piece, and virtual time may pass meanwhile, unwaited.
        return replace(request, octets=b"", pieces=[(9.0, b"x" * 65_536)] * 200)
    return replace(request, octets=b"", pieces=[(1.0, b" ")] * 60)


def in_drops(request: Request) -> Request:
    return replace(request, octets=b"", pieces=[(1.0, b"x")] * 60)


def at_no_route(request: Request) -> Request:
    return replace(request, path=f"{request.path}/")


def by_no_method(request: Request) -> Request:
    return replace(request, method="BREW")


def as_before(request: Request) -> Request:
    return request.with_headers(idempotency_key=request.operation.name)


def for_many(request: Request) -> Request:
    return request.with_body({"emails": [EMAIL] * MANY})


def malformed(request: Request) -> Request:
    """No JSON; a wrong value in the query of what reads no JSON."""
    name = request.operation.name
    query = {"list_lists": "?search=a&search=b", "get_list_results": "?format=pdf"}
    query |= {"get_audit": "?since=yesterday"}
    if name in query:
        return replace(request, path=request.path + query[name])
    if name in ("pause_list", "resume_list", "cancel_list"):
        return request.with_headers(idempotency_key="x" * 256)
    return replace(request, octets=b"name\nAnn\n" if name == "create_list" else b"{")


# -- the table ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """How an account or a request comes to a refusal, and how clients see it."""

    refusal: type[Refusal]
    status: int
    code: str
    arrange: Arranges = nothing
    spoil: Spoils = unspoiled
    more: frozenset[str] = frozenset()
    headers: dict[str, str] = field(default_factory=dict)  # some of them; "" is any value
    closes: bool = False
    tier: Any = "builder"
    settings: Callable[[], dict[str, Any]] = dict  # of the service
    before: Callable[[World, Request], Awaitable[None]] | None = None  # each request
    but: tuple[str, ...] = ()  # operations that declare it, and give it in no way of this case
    at: tuple[str, ...] = ()  # the only operations that do, if their server gives it at the others
    live: str = ""  # "handshake", "address" on an open socket, or both
    tool: Refused | Literal["the same"] | None = "the same"  # at /mcp; None: no tool can ask so
    has_page: bool = True  # False: the dashboard cannot ask so
    asks_store: bool = True  # False: refused by the form of the key

    def __str__(self) -> str:
        return self.refusal.__name__


BEARER = {"www-authenticate": "Bearer"}
SOON = {"retry-after": "1"}
FORM = {"access-control-allow-origin": FORM_ORIGIN, "vary": "Origin"}


def no_key(key: str | None, live: str = "handshake", **headers: str | None) -> dict[str, Any]:
    """A request without a good key."""
    return {
        "spoil": with_key(key, **headers), "headers": BEARER, "live": live,
        "tool": UNAUTHORIZED, "has_page": False, "asks_store": False,
    }  # fmt: skip


def bad_body(spoil: Spoils, **more: Any) -> dict[str, Any]:
    """A body that no tool's call and no page can send."""
    return {"spoil": spoil, "tool": None, "has_page": False, **more}


# fmt: off
CASES = [
    # what clients of every operation can meet
    Case(refusals.NoSuchRoute, 404, "not_found", **bad_body(at_no_route)),
    Case(refusals.MethodNotAllowed, 405, "method_not_allowed", **bad_body(by_no_method), headers={"allow": ""}),
    Case(refusals.OurFault, 500, "internal_error", have_a_bug, tool=BROKEN, has_page=False, but=("health", "openapi")),
    Case(refusals.MissingKey, 401, "missing_api_key", **no_key(None)),
    Case(refusals.MissingKey, 401, "missing_api_key", **no_key(None, authorization="")),
    Case(refusals.MissingKey, 401, "missing_api_key", **no_key(None, live="", authorization="  ")),
    Case(refusals.InvalidKey, 401, "invalid_api_key", **{**no_key(mint("sk_live_")), "asks_store": True}),
    Case(refusals.InvalidKey, 401, "invalid_api_key", have_provisioning_keys_alone, at=STANDARD, live="handshake", tool=UNAUTHORIZED, has_page=False, headers=BEARER),
    Case(refusals.InvalidKey, 401, "invalid_api_key", **no_key("sk_live_short")),
    Case(refusals.InvalidKey, 401, "invalid_api_key", **no_key(None, authorization="Bearer")),
    Case(refusals.InvalidKey, 401, "invalid_api_key", **no_key(None, live="", authorization="Bearer ")),
    Case(refusals.InvalidKey, 401, "invalid_api_key", **no_key(None, authorization="x")),
    Case(refusals.InvalidKey, 401, "invalid_api_key", **no_key("\xe9")),
    Case(refusals.InvalidKey, 401, "invalid_api_key", **no_key(None, authorization="Basic YTpi")),
    Case(refusals.InvalidKey, 401, "invalid_api_key", **no_key("a, Bearer b")),
    Case(refusals.UsageUnknown, 503, "quota_check_failed", lose_the_store, headers=SOON, live="handshake address", has_page=False),
    Case(refusals.UsageUnknown, 503, "quota_check_failed", lose_the_ledger, headers=SOON, at=(*VERIFIES, "verify_form"), live="address"),
    Case(refusals.StorageFull, 507, "storage_full", fill_the_disk, headers={"retry-after": "60"}, tool=None, has_page=False),
    Case(refusals.UsageUnknown, 503, "quota_check_failed", fill_the_disk, headers=SOON, at=(*VERIFIES, "verify_form"), has_page=False),
    # bodies
    Case(refusals.InvalidRequest, 400, "invalid_request", **bad_body(malformed), but=("take_billing_event",)),
    Case(refusals.PayloadTooLarge, 413, "payload_too_large", **bad_body(with_headers(content_length="999999999")), closes=True),
    Case(refusals.SlowBody, 408, "request_timeout", **bad_body(slowly), closes=True),
    Case(refusals.SlowUpload, 408, "request_timeout", **bad_body(in_drops), closes=True),
    Case(refusals.UnsupportedCoding, 415, "unsupported_media_type", **bad_body(with_headers(content_encoding="br"))),
    Case(refusals.UpgradeRequired, 426, "upgrade_required", headers={"upgrade": "websocket"}),
    # limits, quota and money
    Case(refusals.HardCapReached, 402, "payment_required", reach_the_cap, more=CAP, live="address"),
    Case(refusals.RateLimited, 429, "rate_limit_exceeded", use_up_the_minute, tier="free", more=WINDOW, headers={"retry-after": "60"}, has_page=False),
    Case(refusals.NeverFits, 429, "rate_limit_exceeded", spoil=for_many, tier="free", more=WINDOW, headers={"retry-after": ""}, but=("verify_email",)),
    Case(refusals.QuotaExhausted, 429, "monthly_quota_exceeded", use_up_the_month, tier="free", more=MONTH, headers={"retry-after": ""}, live="address"),
    Case(refusals.ProbingUnavailable, 503, "probing_unavailable", be_blind, settings=lambda: {"protection": SelfProtection(refuses=True)}, headers={"retry-after": "30"}, has_page=False),
    Case(refusals.TooManyJobs, 429, "job_limit_reached", have_many_callbacks, spoil=with_body({"email": EMAIL, "webhook": "https://hooks.shop.test/"}), has_page=False),
    Case(refusals.Overloaded, 503, "overloaded", before=be_busy, settings=lambda: {"addresses_max": 1}, headers=SOON, at=(*VERIFIES, "verify_form")),
    # idempotency keys
    Case(refusals.IdempotencyReused, 422, "idempotency_key_reused", spoil=as_before, before=do_another, has_page=False),
    Case(refusals.IdempotencyRunning, 409, "idempotency_in_progress", spoil=as_before, before=be_killed_in_it, headers=SOON, has_page=False),
    Case(refusals.AnswerLost, 409, "idempotency_answer_lost", keep_no_answers, spoil=as_before, before=do_it_once, has_page=False),
    # what is not there
    Case(refusals.JobNotFound, 404, "job_not_found"),
    Case(refusals.ListNotFound, 404, "list_not_found", forget_the_list),
    Case(refusals.BounceNotFound, 404, "bounce_not_found"),
    Case(refusals.KeyNotFound, 404, "key_not_found"),
    # lists
    Case(refusals.TooManyLists, 429, "list_limit_reached", have_a_list_under_way, headers={"retry-after": "60"}),
    Case(refusals.TooManyKeptLists, 429, "list_limit_reached", keep_many_lists),
    Case(refusals.ListsTooLarge, 429, "list_limit_reached", have_no_room_for_lists),
    Case(refusals.ListsTooFast, 429, "rate_limit_exceeded", send_lists_fast, more=WINDOW, headers={"retry-after": ""}),
    # keys and bills
    Case(refusals.WrongKeyType, 403, "wrong_key_type", have_standard_keys_alone, tool=UNAUTHORIZED, has_page=False),
    Case(refusals.TooManyKeys, 429, "key_limit_reached", make_all_keys, tier="free"),
    Case(refusals.KeysTooFast, 429, "rate_limit_exceeded", make_keys_fast, tier="scale", more=WINDOW, headers={"retry-after": ""}),
    Case(refusals.NoBillingAccount, 402, "no_billing_account", have_no_billing),
    Case(refusals.ProviderUnavailable, 503, "billing_unavailable", lose_the_provider, headers={"retry-after": "5"}),
    # forms
    Case(refusals.OriginNotAllowed, 403, "origin_not_allowed", **bad_body(with_headers(origin="https://evil.test")), headers={"vary": "Origin"}),
    Case(refusals.ProofRequired, 428, "proof_required", settings=lambda: {"form_proof_bits": 4}, headers={**FORM, "form-challenge": ""}),
    Case(refusals.FormBusy, 429, "form_busy", check_often, headers={**FORM, "retry-after": ""}),
    Case(refusals.FormOff, 503, "form_off", reach_the_cap, headers={**FORM, "retry-after": "600"}),
]
# fmt: on


def operations_of(case: Case) -> list[str]:
    """The operations that declare the refusal, without those that this case cannot bring to it."""
    declaring = [each.name for each in OPERATIONS if case.refusal in each.refusals]
    return [name for name in case.at or declaring if name not in case.but]


async def refused_by_every_transport(world: World, case: Case) -> dict[str, Refused]:
    seen: dict[str, Refused] = {}
    names = operations_of(case)
    for name in names:
        operation = BY_NAME[name]
        request = case.spoil(world.request(operation))
        if case.before is not None:
            await case.before(world, request)
        world.shop.store.calls.clear()
        seen[name] = refused_by(await world.answer(request))
        assert case.asks_store or world.shop.store.calls == []
        if case.tool is not None and operation.tool is not None:
            seen[f"/mcp {name}"] = await world.tool(name, case.spoil)
        is_repeated = case.before is not None and operation.uploads  # its body is another there
        if case.tool == "the same" and (operation.tool or operation.wide) and not is_repeated:
            seen[f"/mcp/all {name}"] = await world.wide_tool(name, case.spoil)
        if case.has_page and name in PAGES:
            seen[f"dashboard {name}"] = await world.page(name, case.refusal)
    if "handshake" in case.live:
        seen["live handshake"] = await world.live_handshake(case.spoil)
    if "address" in case.live:
        seen["live address"] = await world.live_address()
    return seen


def expected_by(transport: str, case: Case) -> Refused:
    if transport.startswith("/mcp "):
        assert case.tool is not None
        same = Refused(case.status, case.code, case.more)
        return same if case.tool == "the same" else case.tool
    if transport.startswith(("/mcp/all", "dashboard")):
        return Refused(case.status, case.code)
    return Refused(case.status, case.code, case.more)


def has_headers(got: Refused, case: Case) -> bool:
    """Whether the refusal has the case's headers, and no other that says when to come back."""
    expected = {**case.headers, **({"connection": "close"} if case.closes else {})}
    telling = {"connection", "retry-after"}
    return telling & got.headers.keys() == telling & expected.keys() and all(
        got.headers.get(name, "").startswith(text) and name in got.headers
        for name, text in expected.items()
    )


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_refusal_is_the_same_by_every_transport(idle_clock, monkeypatch, case: Case):
    """Virtual time stands still while a process or a thread works on a list, also if it is slow."""
    async with open_world(case.tier, **case.settings()) as world:
        await case.arrange(world, monkeypatch)
        seen = await refused_by_every_transport(world, case)
        world.shop.store.away = False
    assert seen
    expected = {transport: expected_by(transport, case) for transport in seen}
    assert {transport: got for transport, got in seen.items() if got != expected[transport]} == {}
    over_http = [got for transport, got in seen.items() if transport in BY_NAME]
    assert [got for got in over_http if not has_headers(got, case)] == []
    for name, got in seen.items():
        if name in BY_NAME:
            anchor = TABLE[case.refusal].anchor or BY_NAME[name].section
            assert got.body["docs"] == f"https://docs.test/api#{anchor}"


def test_every_refusal_is_in_the_table_and_every_operation_is_in_it():
    assert {case.refusal for case in CASES} == set(TABLE)
    assert {name for case in CASES for name in operations_of(case)} == set(BY_NAME)
