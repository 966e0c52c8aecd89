"""Abusive customers cannot end the service, be billed twice or fill the disk."""

from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.api.jobs.delivery import Delivered, http_context
from mailprobe.api.jobs.worker import BOUNDS
from mailprobe.api.quota.background_writes import open_background_writes
from mailprobe.api.quota.plans import PLANS
from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import EngineSettings, open_answers, open_engine
from mailprobe.engine.background import contained
from mailprobe.engine.dns.doh import tls_context
from mailprobe.engine.evidence import (
    CONVERSATION_LINES_MAX,
    LINE_OCTETS_MAX,
    ConnectionAttempt,
    ConversationLine,
    Evidence,
    EvidenceBudget,
    shown,
)
from tests.api.jobs.test_worker import Receiver, promise, working
from tests.api.service_fixture import (
    BATCH,
    STREAM,
    VERIFY,
    HttpAnswer,
    KilledProcess,
    LazyApp,
    RunningService,
    open_shop,
)
from tests.seeds import ALL

ANSWER_MAX = 256 * 1024  # octets of one answer with evidence
LOUD = "550-" + "\x01" * 1990  # the longest reply line that the engine reads
LOUD_REPLY = "\r\n".join(["550-5.1.1 <{rcpt}>: User unknown", *[LOUD] * 7, "550 5.1.1 bye"])


def add_loud_host(shop: RunningService) -> None:
    shop.world.add("loud.test", MailHost(default_unknown=LOUD_REPLY))


# == one request ends nothing but itself =======================================================


@pytest.mark.parametrize("path", [VERIFY, BATCH, STREAM])
async def test_evidence_has_a_bound_whatever_hosts_say(autojump_clock, shop: RunningService, path):
    """A reply of 16 KiB of control characters once grew sixfold in JSON, for each address."""
    add_loud_host(shop)
    emails = [f"nobody{n}@loud.test" for n in range(1 if path == VERIFY else 50)]
    body = {"email": emails[0]} if path == VERIFY else {"emails": emails}
    got = await shop.request("POST", f"{path}?evidence=1", body)
    assert got.status == 200
    assert len(got.octets) < ANSWER_MAX
    reported = [got.body] if path == VERIFY else got.body["results"] if path == BATCH else got.lines
    assert [one["email"] for one in reported if one["status"] == "invalid"] == []
    assert reported[-1]["evidence"]["truncated"]
    for one in reported:
        lines = [line["text"] for line in one["evidence"]["conversation"]]
        assert len(lines) <= CONVERSATION_LINES_MAX
        assert all(len(line.encode()) <= LINE_OCTETS_MAX and line.isprintable() for line in lines)


async def test_a_request_with_the_largest_evidence_and_a_key_ends_nothing(autojump_clock, shop):
    """Its answer was once too large to store, and the service crashed."""
    add_loud_host(shop)
    body = {"emails": [f"nobody{n}@loud.test" for n in range(50)]}
    key = {"Idempotency-Key": "k"}
    first = await shop.request("POST", f"{BATCH}?evidence=1", body, headers=key)
    again = await shop.request("POST", f"{BATCH}?evidence=1", body, headers=key)
    assert (first.status, first.octets) == (200, again.octets)
    assert again.headers["idempotency-replayed"] == "true"
    assert len(await shop.rows()) == 50
    assert (await shop.verify()).status == 200


def test_shown_text_is_printable_and_short():
    assert shown("250 2.1.5 Ok") == "250 2.1.5 Ok"
    assert shown("a\x00b\x1b[2J\x7f\r\n") == "a?b?[2J???"
    for text in ("x" * 600, "é" * 600, "\U0001f600" * 600, "\x00" * 600, "\udc80" * 600):
        kept = shown(text)
        assert len(kept.encode()) <= LINE_OCTETS_MAX
        assert kept.isprintable()
        assert len(kept.encode()) > LINE_OCTETS_MAX - 4


def test_the_evidence_of_an_answer_is_cut_in_order():
    lines = [ConversationLine(1.0, "server", "x" * 500)] * 3
    whole = Evidence(
        [ConnectionAttempt("mx.test", "192.0.2.1", "answered")], lines, "rule", cached=["mx"]
    )
    budget = EvidenceBudget(3100)
    assert budget.fit(whole) is whole
    cut = budget.fit(whole)
    assert cut.truncated
    assert (cut.exchanges, cut.rule, cut.cached) == (whole.exchanges, "rule", ["mx"])
    assert cut.conversation == lines[:2]
    empty = budget.fit(whole)
    assert (empty.exchanges, empty.conversation, empty.truncated) == ([], [], True)


# == every nursery that outlives a request =====================================================


class Fault(Exception):
    """A bug in the service."""


async def throw(*arguments: Any, **named: Any) -> Any:
    raise Fault


async def test_contained_work_raises_nothing(autojump_clock, faults):
    assert not await contained(throw)
    assert len(faults) == 1
    assert await contained(trio.sleep, 1)
    with trio.move_on_after(1) as cancelled:
        await contained(trio.sleep_forever)
    assert cancelled.cancelled_caught


async def test_a_write_that_fails_ends_no_other(autojump_clock, faults):
    async with open_background_writes() as background_writes:
        failed = background_writes.write_until_durable(throw)
        background_writes.run_beside(throw)
        await failed.wait()
        written = background_writes.write_until_durable(trio.lowlevel.checkpoint)
        await written.wait()
    assert len(faults) == 2


async def test_an_answer_that_cannot_be_kept_ends_no_request(autojump_clock, shop, faults):
    shop.store.throwing = {"finish_idempotent"}
    body = {"email": "bad", "webhook": "no"}  # an answer that counts nothing
    assert (
        await shop.request("POST", VERIFY, body, headers={"Idempotency-Key": "k"})
    ).status == 400
    shop.store.throwing = set()
    assert (await shop.verify()).status == 200


async def test_a_lease_that_cannot_be_extended_ends_no_other(autojump_clock, shop, faults):
    shop.store.throwing = {"extend"}
    shop.world.add("late.test", MailHost(latency_s=0.9))
    async with trio.open_nursery() as nursery:
        quota = shop.service.quota
        caller = await shop.caller()
        reservation = await shop.store.reserve(caller, 1, lambda ledger: None, lease_s=20)
        with quota.holding(reservation):
            await trio.sleep(12)
            assert faults
            shop.store.throwing = set()
            before = len(faults)
            await trio.sleep(12)
            assert len(faults) == before
        nursery.cancel_scope.cancel()
    ledger = await shop.store.ledger(await shop.caller())
    assert ledger.reserved == 1  # the lease was extended again
    assert (await shop.verify()).status == 200


async def test_a_session_that_fails_ends_no_other(autojump_clock, monkeypatch, faults):
    """The tasks of mail hosts live as long as the engine."""
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        network.add("other.test", MailHost())
        async with open_engine(
            EngineSettings(), transport=network.transport, dial=network.dial
        ) as engine:
            with monkeypatch.context() as patched:
                patched.setattr("mailprobe.engine.smtp.host.opening.greet", throw)
                async with open_answers(engine, ["known@shop.test"], account="a") as answers:
                    verdict = (await anext(answers)).verdict
                assert verdict.status == "unknown"
            assert faults
            async with open_answers(engine, ["known@other.test"], account="a") as answers:
                assert (await anext(answers)).verdict.status == "deliverable"


async def test_a_look_up_that_fails_ends_those_who_wait_for_it(
    autojump_clock, monkeypatch, faults, shop
):
    with monkeypatch.context() as patched:
        patched.setattr("mailprobe.engine.dns.resolver.Lookup.start", throw_at_idempotency)
        assert (await shop.verify()).status == 500
    assert (await shop.verify()).body["status"] == "deliverable"


async def test_a_stream_that_fails_ends_no_other(autojump_clock, monkeypatch, faults, shop):
    """The task that settles a verdict delivers it: the shared timer, or a mail host's session."""
    with monkeypatch.context() as patched:
        patched.setattr("mailprobe.engine.stream.answers.Answers.put", throw_at_idempotency)
        assert (await shop.verify()).status == 500
    assert (await shop.verify()).status == 200


def throw_at_idempotency(*arguments: Any) -> None:
    raise Fault


# == an idempotent request is done and billed once =============================================

KEYED = {"Idempotency-Key": "k"}
LEASE_S = 61.0  # after this, a repeat of a killed request starts again


async def send_single(shop: RunningService) -> HttpAnswer:
    return await shop.verify(headers=KEYED)


async def send_known(shop: RunningService) -> HttpAnswer:
    return await shop.verify("bad", headers=KEYED)


async def send_batch(shop: RunningService) -> HttpAnswer:
    return await shop.batch("known@friendly.test", "bad", "ann@mailinator.com", headers=KEYED)


async def send_malformed(shop: RunningService) -> HttpAnswer:
    return await shop.verify(5, headers=KEYED)


async def send_job(shop: RunningService) -> HttpAnswer:
    body = {"email": "known@friendly.test", "webhook": "https://hooks.test/"}
    return await shop.request("POST", VERIFY, body, headers=KEYED)


async def send_key(shop: RunningService) -> HttpAnswer:
    return await shop.manage("POST", "/keys", {"label": "x"}, headers=KEYED)


# a request, its status, and what it does once: rows, jobs and keys
IDEMPOTENCY = [
    (send_single, 200, (1, 0, 2)),
    (send_known, 200, (1, 0, 2)),
    (send_batch, 200, (3, 0, 2)),
    (send_malformed, 400, (1, 0, 2)),
    (send_job, 202, (0, 1, 2)),
    (send_key, 201, (0, 0, 3)),
]


async def what_was_done(shop: RunningService) -> tuple[int, int, int]:
    store, account_id = shop.store, shop.account.id
    jobs, keys = await store.jobs(limit=100), await store.keys(account_id)
    return len(await shop.rows()), len(jobs), len(keys)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize(
    ("send", "status", "idempotency"), IDEMPOTENCY, ids=lambda one: getattr(one, "__name__", "")
)
async def test_a_kill_between_any_two_writes_does_it_once(
    autojump_clock, kind, send, status, idempotency
):
    """The process dies before or after each store call; the client repeats the request twice.

    Each kind of store has half of the moments, unless all are tried.
    """
    for moment in count() if ALL else count(int(kind == "sqlite"), 2):
        killed_process = KilledProcess(moment)
        async with trio.open_nursery() as the_dead, open_shop(kind=kind) as shop:
            shop.service = replace(shop.service, jobs=Promises())
            shop.app = LazyApp(shop.service)
            ended = trio.Event()

            async def first(shop: RunningService = shop, ended: trio.Event = ended) -> None:
                await send(shop)
                ended.set()

            the_dead.start_soon(killed_process.run, first)
            await wait_for_one(killed_process.killed, ended)
            if not killed_process.killed.is_set():
                assert moment > 4
                break
            soon = await send(shop)
            assert soon.status in (status, 409), soon.octets
            await trio.sleep(LEASE_S)
            again = await send(shop)
            assert again.status == status, again.octets
            assert await what_was_done(shop) == idempotency, moment
            last = await send(shop)
            assert (last.octets, last.headers["idempotency-replayed"]) == (again.octets, "true")
            assert soon.status == 409 or soon.octets == again.octets
            assert await what_was_done(shop) == idempotency
            the_dead.cancel_scope.cancel()


async def wait_for_one(*events: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for event in events:
            nursery.start_soon(wait, event)


@dataclass
class Promises:
    """A job service that accepts jobs and never runs them."""

    def wake(self) -> None:
        """Do nothing: no job runs."""

    def stop(self) -> None:
        """Do nothing: no job runs."""


async def test_an_uncounted_400_is_not_kept(autojump_clock, shop: RunningService):
    """A free key once wrote 2,069 rows in ten seconds and could fill the disk."""
    assert (await shop.batch(*["x"] * 51, headers=KEYED)).status == 400
    got = await shop.batch("bad", headers=KEYED)
    assert got.status == 200
    assert "idempotency-replayed" not in got.headers


async def test_an_answer_that_repeats_a_text_too_long_is_not_kept(
    autojump_clock, shop: RunningService
):
    for number, send in enumerate((shop.verify, shop.batch)):
        key = {"Idempotency-Key": f"{number}"}
        got = await send("x" * 321, headers=key)
        assert got.status == 200
        again = await send("x" * 321, headers=key)
        assert (again.status, again.error) == (409, "idempotency_answer_lost")
        assert len(await shop.rows()) == number + 1
    assert (await shop.verify("x" * 320, headers=KEYED)).status == 200
    assert (await shop.verify("x" * 320, headers=KEYED)).status == 200


async def test_an_answer_too_large_to_keep_is_lost_and_nothing_is_done_again(
    autojump_clock, shop: RunningService, monkeypatch
):
    monkeypatch.setattr("mailprobe.storage.idempotency.ANSWER_OCTETS_MAX", 100)
    assert (await shop.verify(headers=KEYED)).status == 200
    got = await shop.verify(headers=KEYED)
    assert (got.status, got.error) == (409, "idempotency_answer_lost")
    assert "retry-after" not in got.headers
    assert len(await shop.rows()) == 1


# == one account's callbacks stop nobody else's ================================================


async def test_callbacks_that_hang_delay_no_neighbour(autojump_clock):
    """Jobs of syntax errors, which cost nothing, with sixty receivers that never answer."""
    async with open_shop("scale") as shop:
        receiver = Receiver()
        receiver.takes_s = lambda host: 0.05 if host == "good.test" else 15.0
        receiver.answer = lambda host: Delivered(200 if host == "good.test" else None, "x", None, 5)
        neighbour = await shop.store.create_account("bob@example.org", "builder")
        key = await shop.new_key("sk_live_", neighbour.id)
        async with working(shop, receiver):
            for number in range(300):
                await promise(shop, "bad", f"https://{number % 60}.test/")
            await trio.sleep(1)
            for _ in range(5):
                asked_at = trio.current_time()
                await promise(shop, "bad", "https://good.test/", key=key)
                await trio.sleep(5)
                (called_at,) = [at for at, host, *_ in receiver.calls if host == "good.test"]
                receiver.calls = [call for call in receiver.calls if call[1] != "good.test"]
                assert called_at - asked_at < 0.12
            hanging = sum(receiver.at_idempotency.values())
            most = BOUNDS["deliver"].account_max
            assert most <= hanging <= 2 * most


async def test_callbacks_that_hang_do_not_delay_the_account_s_other_receivers(autojump_clock):
    """Fifty receivers take all of an account's calls; once they are known to hang, others are called."""
    async with open_shop("scale") as shop:
        receiver = Receiver()
        receiver.takes_s = lambda host: 0.05 if host == "good.test" else 15.0
        receiver.answer = lambda host: Delivered(200 if host == "good.test" else None, "x", None, 5)
        async with working(shop, receiver):
            for number in range(100):
                await promise(shop, "bad", f"https://{number % 50}.test/")
            for _ in range(2):
                asked_at = trio.current_time()
                await promise(shop, "bad", "https://good.test/")
                await trio.sleep(5)
                (called_at,) = [at for at, host, *_ in receiver.calls if host == "good.test"]
                receiver.calls = [call for call in receiver.calls if call[1] != "good.test"]
                assert called_at - asked_at < 2.2
            assert max(receiver.at_idempotency.values()) <= 2


async def test_a_receiver_that_always_fails_gets_one_try_at_a_time(autojump_clock):
    async with open_shop("scale") as shop:
        receiver = Receiver()
        receiver.answer = lambda host: Delivered(500, None, None, 5)
        async with working(shop, receiver):
            for _ in range(30):
                await promise(shop, "bad", "https://bad.test/")
            await trio.sleep(60)
            assert receiver.most_at_idempotency["bad.test"] == BOUNDS["deliver"].each_max
            receiver.most_at_idempotency.clear()
            await trio.sleep(3600)
            assert receiver.most_at_idempotency["bad.test"] == 1


async def test_an_account_has_a_bound_of_callbacks_that_are_not_delivered(
    autojump_clock, monkeypatch
):
    monkeypatch.setattr("mailprobe.api.quota.charge.JOBS_UNDELIVERED_MAX", 5)
    async with open_shop("scale") as shop:
        receiver = Receiver()
        receiver.answer = lambda host: Delivered(500, None, None, 5)
        async with working(shop, receiver):
            for _ in range(5):
                assert (await promise(shop, "bad")).status == 202
            await trio.sleep(60)
            got = await promise(shop, "bad")
            assert (got.status, got.error) == (429, "job_limit_reached")
            assert "retry-after" not in got.headers
            assert (await shop.verify("bad")).status == 200
            receiver.answer = lambda host: Delivered(200, None, None, 5)
            await trio.sleep(3600)
            assert (await promise(shop, "bad")).status == 202


async def test_a_job_keeps_no_more_of_a_text_than_an_address_has(autojump_clock):
    """Eight requests with 2 MB each once took 50 MB of the database."""
    async with open_shop() as shop:
        receiver = Receiver()
        async with working(shop, receiver):
            got = await promise(shop, "x" * 2_000_000)
            assert got.status == 202
            await trio.sleep(5)
            (reported,) = receiver.bodies()
            assert (reported["failed_check"], reported["email"]) == ("syntax", "x" * 320)
            (job,) = await shop.store.jobs(limit=9)
            assert len(job.email) == 320
            assert len(job.payload) < 1000


# == keys ======================================================================================


async def test_a_fresh_key_in_a_revoked_ones_place_buys_no_fresh_minute(autojump_clock):
    """Each key has its own window; an account is limited to `max_keys` such windows."""
    async with open_shop("free") as shop:
        plan = PLANS["free"]
        granted, refused, began = 0, [], trio.current_time()
        keys = [key.id for key in await shop.store.keys(shop.account.id) if key.kind == "standard"]
        await shop.store.revoke_key(None, keys[0])
        for _ in range(6):
            made = (await shop.manage("POST", "/keys")).body
            for _ in range(plan.rate_limit_per_min + 2):
                got = await shop.verify("bad", key=made["key"])
                granted += got.status == 200
                refused += [got] if got.status != 200 else []
            await shop.manage("DELETE", f"/keys/{made['id']}")
            await trio.sleep(1)
        assert granted == plan.max_keys * plan.rate_limit_per_min
        got = refused[-1]
        assert (got.status, got.error, got.body["limit"]) == (429, "rate_limit_exceeded", granted)
        assert "all keys of the account" in got.body["message"]
        assert got.headers["ratelimit"].startswith('"minute";r=0')
        wait_s = int(got.headers["retry-after"])
        assert trio.current_time() + wait_s - began >= 60
        key = (await shop.manage("POST", "/keys")).body["key"]
        await trio.sleep(wait_s)
        assert (await shop.verify("bad", key=key)).status == 200


async def test_an_account_makes_twenty_keys_a_minute(autojump_clock):
    async with open_shop("scale") as shop:
        await trio.sleep(60)
        statuses = []
        for _ in range(25):
            got = await shop.manage("POST", "/keys")
            statuses.append(got.status)
            if got.status == 201:
                await shop.manage("DELETE", f"/keys/{got.body['id']}")
        assert statuses == [201] * 20 + [429] * 5
        assert (got.error, got.body["limit"], got.body["window"]) == (
            "rate_limit_exceeded", 20, "1m",
        )  # fmt: skip
        await trio.sleep(int(got.headers["retry-after"]))
        assert (await shop.manage("POST", "/keys")).status == 201


def test_a_certificate_is_accepted_by_its_alternative_names_alone():
    """The common name is ignored (RFC 9525 6.3), for callbacks and for resolvers."""
    assert tls_context(None).hostname_checks_common_name is False
    assert http_context(None).hostname_checks_common_name is False
