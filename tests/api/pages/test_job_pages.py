"""The pages of jobs: filters, the search by id, what one job shows, and the test callback."""

import html
import json
import re
from urllib.parse import quote

import trio

from mailprobe.api.jobs.delivery import Delivered
from mailprobe.api.pages.dashboard.work.job_pages import JOBS_SHOWN
from tests.api.jobs.test_worker import open_working_shop, promise
from tests.api.pages.test_dashboard import signed_in

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_HOOK = "https://other.shop.test:8443/mail?token=t"


async def text_of(visitor, path: str) -> str:
    got = await visitor.get(path)
    assert got.status == 200, got.octets
    return html.unescape(got.octets.decode())


def ids_in(page: str) -> list[str]:
    return re.findall(r'<td[^>]*><a href="/dashboard/jobs/([0-9a-f-]{36})"', page)


async def test_jobs_are_filtered_by_state_and_receiver_and_found_by_id(autojump_clock):
    async with open_working_shop() as (shop, receiver):
        receiver.answer = lambda host: Delivered(500 if "other" in host else 200, None, None, 5)
        visitor = await signed_in(shop)
        made = [
            await promise(shop, hook=hook) for hook in ("https://hooks.shop.test/mail", OTHER_HOOK)
        ]
        good, failing = (got.body["job_id"] for got in made)
        await trio.sleep(3)
        assert ids_in(await text_of(visitor, "/jobs")) == [failing, good]
        for query, ids in (
            ("state=done", [good]),
            ("state=delivering", [failing]),
            ("state=failed", []),
            ("state=nonsense", [failing, good]),
            ("receiver=other.shop.test:8443", [failing]),
            ("receiver=other.shop.test:8443&state=done", []),
            ("receiver=hooks.shop.test&state=done", [good]),
            (f"before={failing}", [good]),
            ("before=x", []),
            ("receiver=" + quote("' OR 1=1 --"), []),
        ):
            page = await text_of(visitor, f"/jobs?{query}")
            assert ids_in(page) == ids, query
            assert ids or "Show all jobs" in page
        got = await visitor.get(f"/jobs?id={good.upper()}")
        assert (got.status, got.headers["location"]) == (303, f"/dashboard/jobs/{good}")
        got = await visitor.get(f"/jobs?id={good[:8]}")
        assert (got.status, got.headers["location"]) == (303, f"/dashboard/jobs/{good}")
        assert (await visitor.get(f"/jobs?id={good[:7]}")).status == 404
        missing = await visitor.get("/jobs?id=%3Cb%3E")
        assert missing.status == 404
        assert b"There is no job with this id" in missing.octets
        assert b"<b>" not in missing.octets
        overview = await text_of(visitor, "")
        assert f'href="/dashboard/jobs/{failing}"' in overview
        await promise(shop, hook=OTHER_HOOK)
        await trio.sleep(3)
        overview = await text_of(visitor, "/now")
        assert "/dashboard/jobs?state=delivering&receiver=other.shop.test%3A8443" in overview


async def test_more_jobs_than_a_page_has_are_on_older_pages(autojump_clock):
    async with open_working_shop() as (shop, _):
        visitor = await signed_in(shop)
        for _ in range(JOBS_SHOWN + 2):
            assert (await promise(shop, "no address")).status == 202
        first = await text_of(visitor, "/jobs?receiver=hooks.shop.test")
        assert len(ids_in(first)) == JOBS_SHOWN
        (older,) = re.findall(r'href="/dashboard(/jobs\?[^"]+)" rel="next"', first)
        last = await text_of(visitor, older)
        assert len(ids_in(last)) == 2
        assert not {*ids_in(first)} & {*ids_in(last)}
        assert 'rel="next"' not in last


async def test_a_job_shows_what_is_sent_and_never_its_secret(autojump_clock):
    async with open_working_shop() as (shop, receiver):
        visitor = await signed_in(shop)
        got = await promise(shop, hook=OTHER_HOOK, body={"webhook_secret": SECRET})
        job_id = got.body["job_id"]
        pending = await text_of(visitor, f"/jobs/{job_id}")
        assert "Verifying" in pending
        assert "Send it again" not in pending
        assert "shows=0" in pending
        await trio.sleep(3)
        refreshed = await visitor.get(f"/jobs/{job_id}/progress?shows=0")
        assert refreshed.headers["hx-refresh"] == "true"
        page = await text_of(visitor, f"/jobs/{job_id}")
        _, _, headers, body = receiver.calls[0]
        assert OTHER_HOOK in page
        (shown,) = re.findall(r'id="sent-body">(.*?)</code>', page, re.DOTALL)
        assert json.loads(shown) == json.loads(body)
        (lines,) = re.findall(r'id="sent-headers">(.*?)</code>', page, re.DOTALL)
        sent = dict(line.split(": ", 1) for line in lines.splitlines())
        assert sent.keys() == headers.keys()
        for name in headers.keys() - {"X-Service-Signature", "webhook-signature"}:
            assert sent[name] == headers[name]
        for hidden in (
            SECRET,
            headers["X-Service-Signature"][7:],
            headers["webhook-signature"][3:],
        ):
            assert hidden not in page
        assert re.search(r"</svg> 200</span>", page)
        assert "hx-get" not in page.split('id="job"')[1].split(">")[0]  # it has ended
        assert (await visitor.post(f"/jobs/{job_id}/resend")).status == 303
        await trio.sleep(3)
        assert len(receiver.calls) == 2


async def test_a_job_that_is_fetched_has_nothing_to_send_again(autojump_clock):
    async with open_working_shop() as (shop, _):
        visitor = await signed_in(shop)
        got = await shop.request(
            "POST", "/v1/email/verify", {"email": "ann@friendly.test", "async": True}
        )
        await trio.sleep(3)
        page = await text_of(visitor, f"/jobs/{got.body['job_id']}")
        assert "Send it again" not in page
        assert "Attempts" not in page
        assert "fetches its result" in page
        assert (await visitor.post(f"/jobs/{got.body['job_id']}/resend")).status == 404


async def test_a_test_callback_costs_nothing_and_is_a_job_like_others(autojump_clock):
    async with open_working_shop("free", takes_test_keys=False) as (shop, receiver):
        visitor = await signed_in(shop)
        before = await shop.store.ledger(await shop.caller())
        got = await visitor.post("/jobs/test", {"webhook": OTHER_HOOK, "secret": SECRET})
        assert got.status == 303
        await trio.sleep(3)
        (_, host, headers, body), *_ = receiver.calls
        assert (host, json.loads(body)["email"]) == ("other.shop.test", "deliverable@sandbox.test")
        assert headers["X-Service-Signature"]
        page = await text_of(visitor, got.headers["location"].removeprefix("/dashboard"))
        assert "Send it again" in page
        after = await shop.store.ledger(await shop.caller())
        assert (after.month_units, after.window_units) == (before.month_units, before.window_units)
        assert not shop.world.dialled


async def test_a_wrong_test_callback_keeps_what_was_typed(autojump_clock):
    async with open_working_shop() as (shop, receiver):
        visitor = await signed_in(shop)
        for webhook, secret in (
            ("http://shop.test/", ""), ("https://127.0.0.1/", ""), ("", ""),
            ("https://a@b.test/", ""), ("https://shop.test/", "short"), ("https://shop.test/", "x" * 257),
        ):  # fmt: skip
            got = await visitor.post("/jobs/test", {"webhook": webhook, "secret": secret})
            page = got.octets.decode()
            assert got.status == 400
            assert f'value="{webhook}"' in page
            assert f'value="{secret}"' in page
            assert page.count('aria-invalid="true"') == 1
        statuses = []
        for _ in range(
            6
        ):  # the page of the last one is drawn in a thread, while virtual time may pass
            fields = {"webhook": OTHER_HOOK}
            statuses.append((await visitor.post("/jobs/test", fields)).status)
        assert statuses == [303] * 5 + [429]
        await trio.sleep(61)
        assert len(receiver.calls) == 5
        assert (await visitor.post("/jobs/test", {"webhook": OTHER_HOOK})).status == 303


async def test_another_accounts_job_is_not_shown(autojump_clock):
    async with open_working_shop() as (shop, _):
        job_id = (await promise(shop)).body["job_id"]
        other = await shop.store.create_account("eve@example.org", "builder")
        eve = await signed_in(shop, await shop.new_key("sk_mgmt_", other.id))
        for path in (f"/jobs/{job_id}", f"/jobs/{job_id}/progress", f"/jobs?id={job_id}"):
            assert (await eve.get(path)).status == 404
        page = await text_of(eve, f"/jobs?receiver=hooks.shop.test&before={job_id}")
        assert ids_in(page) == []
        assert "There is no job" in await text_of(eve, "/jobs")
