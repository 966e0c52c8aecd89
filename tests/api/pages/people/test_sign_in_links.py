"""Signing in by a link: once, in the browser that asked, within its time; and all who try otherwise."""

import logging
import math
import re
from datetime import timedelta
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.api.alerts.smtp_relay import SendResult
from mailprobe.api.pages.dashboard.sign_ins import TRIES_EACH
from mailprobe.api.serve import create_app
from mailprobe.storage.people.links import (
    ACCOUNT_LINKS_MAX,
    ADDRESS_LINKS_MAX,
    INVITATIONS_KEPT,
    LINKS_KEPT,
)
from tests.api.pages.people.visitor import HOME, Visitor, link_of, open_people_shop
from tests.api.service_fixture import open_shop


async def test_a_link_signs_in_and_leads_to_the_page_that_was_wanted(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        await people.person("member", "ann@shop.test")
        visitor = Visitor(people.shop)
        sent = await visitor.request_link("Ann@Shop.test", next=f"{HOME}/keys")
        assert (sent.status, b"Check your mail" in sent.octets) == (200, True)
        mail = await people.mail()
        assert (mail["To"], mail["Auto-Submitted"]) == ("ann@shop.test", "auto-generated")
        page = await visitor.open_link(link_of(mail))
        assert (page.status, b"ann@shop.test" in page.octets) == (200, True)
        pressed = await visitor.press()
        assert (pressed.status, pressed.headers["location"]) == (303, f"{HOME}/keys")
        shown = await visitor.get("keys")
        assert (shown.status, b"Account menu of ann@shop.test" in shown.octets) == (200, True)
        assert set(visitor.cookies) == {"__Host-mailprobe_session", "mailprobe_browser"}


async def test_a_link_is_used_up_by_its_button_alone(autojump_clock: Any) -> None:
    """Programs that look at the links of mails send a GET, or several."""
    async with open_people_shop() as people:
        await people.person("member", "ann@shop.test")
        visitor = Visitor(people.shop)
        await visitor.request_link("ann@shop.test")
        link = await people.link()
        for _ in range(3):
            await Visitor(people.shop, client="203.0.113.1").open_link(link)
            await visitor.open_link(link)
        kept = dict(visitor.cookies)
        assert (await visitor.press()).status == 303
        again = Visitor(people.shop, cookies=kept)
        assert ((await again.press()).status, again.is_signed_in) == (403, False)
        assert (
            b"This link does not work here, or not any more."
            in (await again.open_link(link)).octets
        )


async def test_a_link_is_refused_in_another_browser(autojump_clock: Any) -> None:
    """A stranger who reads the mail, and one who is sent the stranger's own link."""
    async with open_people_shop() as people:
        for name in ("ann", "eve"):
            await people.person("member", f"{name}@shop.test")
        ann, eve = Visitor(people.shop), Visitor(people.shop, client="203.0.113.1")
        await ann.request_link("ann@shop.test")
        of_ann = await people.link()
        assert (await eve.open_link(of_ann)).status == 403
        assert ((await eve.press()).status, eve.is_signed_in) == (403, False)
        await eve.request_link("eve@shop.test")
        of_eve = await people.link()
        page = await ann.open_link(of_eve)
        assert (page.status, b"eve@shop.test" in page.octets) == (403, False)
        assert ((await ann.press()).status, ann.is_signed_in) == (403, False)
        await ann.open_link(of_ann)
        assert (await ann.press()).status == 303  # it was not used up by the attempts


async def test_a_button_signs_in_nobody_but_whom_its_page_shows(autojump_clock: Any) -> None:
    """A page of somebody else's can open a link, such as an invitation, and so change the cookie."""
    async with open_people_shop() as people:
        await people.active("owner", "eve@shop.test")
        eve = await people.signed_in("eve@shop.test")
        await people.person("member", "ann@shop.test")
        ann = Visitor(people.shop)
        await ann.request_link("ann@shop.test")
        await ann.open_link(await people.link())
        await eve.post("people", {"email": "bob@shop.test", "role": "viewer"})
        await ann.get(await people.link())  # without its page
        assert ((await ann.press()).status, ann.is_signed_in) == (403, False)


async def test_a_link_ends_after_fifteen_minutes(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        await people.person("member", "ann@shop.test")
        visitor = Visitor(people.shop)
        await visitor.request_link("ann@shop.test")
        link = await people.link()
        people.shop.clock.set(people.shop.clock() + LINKS_KEPT)
        assert (await visitor.open_link(link)).status == 403
        assert ((await visitor.press()).status, visitor.is_signed_in) == (403, False)


async def test_a_made_up_link_signs_nobody_in(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        visitor = Visitor(people.shop)
        for token in ("", "x", "x" * 43, "x" * 200, "%00", "../link"):
            assert (await visitor.open_link(f"sign-in/link?token={token}")).status == 403
        assert (await visitor.press()).status == 403


async def test_unknown_and_known_addresses_are_answered_alike(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        await people.person("member", "ann@shop.test")
        known, unknown = Visitor(people.shop), Visitor(people.shop, client="203.0.113.1")
        pages = []
        for visitor, email in ((known, "ann@shop.test"), (unknown, "eve@shop.test")):
            got = await visitor.request_link(email)
            page = re.sub(rb"\d\d:\d\d:\d\d[.\d]*", b"", got.octets.replace(email.encode(), b""))
            pages.append((got.status, page))
            assert set(visitor.cookies) == {"__Host-mailprobe_asked"}
        assert pages[0] == pages[1]
        await people.mail()
        await trio.sleep(1000)
        assert len(people.box.taken) == 1
        # asked too often, whoever asks: the same page, and no mail
        for number in range(5):
            asking = Visitor(people.shop, client=f"198.51.100.{number}")
            assert (await asking.request_link("ann@shop.test")).status == 200
            await trio.sleep(60)
        assert len(people.box.taken) == 1 + ADDRESS_LINKS_MAX


async def test_a_link_that_others_used_up_is_answered_like_any(autojump_clock: Any) -> None:
    """Neither of an address nor of its account: whoever asks again at once is early."""
    async with open_people_shop() as people:
        team = [f"ann{number}@shop.test" for number in range(11)]
        for email in team:
            await people.person("member", email)
        for number in range(ACCOUNT_LINKS_MAX):
            asking = Visitor(people.shop, client=f"198.51.{number}.1")
            await asking.request_link(team[number // ADDRESS_LINKS_MAX])
        answers = []
        for number, email in enumerate((team[0], team[-1], "eve@shop.test")):
            asking = Visitor(people.shop, client=f"203.0.{number}.1")
            await asking.request_link(email)
            early = await asking.request_link(email)
            page = re.sub(rb"\d\d:\d\d:\d\d[.\d]*", b"", early.octets.replace(email.encode(), b""))
            answers.append(page)
            assert b"No second mail was sent yet." in page, email
        assert answers[0] == answers[1] == answers[2]
        await trio.sleep(1000)
        assert len(people.box.taken) == ACCOUNT_LINKS_MAX


async def test_a_page_says_when_a_link_may_be_sent_again(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        await people.person("member", "ann@shop.test")
        visitor = Visitor(people.shop)
        sent = await visitor.request_link("ann@shop.test")
        assert b'data-again="60"' in sent.octets
        await trio.sleep(18)
        early = await visitor.request_link("ann@shop.test")
        assert (early.status, b"No second mail was sent yet." in early.octets) == (200, True)
        assert re.search(
            rb"It can be sent again in (3\d|4[012]) s, at \d\d:\d\d:\d\d UTC", early.octets
        )
        await trio.sleep(42)
        again = await visitor.request_link("ann@shop.test")
        assert b"No second mail" not in again.octets
        assert await people.link() != await people.link()
        await trio.sleep(1000)
        assert len(people.box.taken) == 2


async def test_a_browser_that_was_signed_in_gets_a_link_while_strangers_ask(
    autojump_clock: Any,
) -> None:
    async with open_people_shop() as people:
        await people.active("owner", "ann@shop.test")
        ann = await people.signed_in("ann@shop.test")
        await ann.post("sign-out")
        for number in range(ADDRESS_LINKS_MAX):
            asking = Visitor(people.shop, client=f"198.51.100.{number}")
            await asking.request_link("ann@shop.test")
        await trio.sleep(60)
        taken = len(people.box.taken)
        await Visitor(people.shop).request_link("ann@shop.test")
        await ann.request_link("ann@shop.test")
        await trio.sleep(60)
        assert len(people.box.taken) == taken + 1


async def test_an_answer_does_not_wait_for_the_relay(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        people.box.takes_s = math.inf
        await people.person("member", "ann@shop.test")
        for email in ("ann@shop.test", "eve@shop.test"):
            assert (await Visitor(people.shop).request_link(email)).status == 200


async def test_attempts_are_throttled_by_the_client(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        visitor = Visitor(people.shop)
        for _ in range(TRIES_EACH):
            assert (await visitor.request_link("ann@shop.test")).status == 200
        assert (await visitor.request_link("ann@shop.test")).status == 429
        assert (await visitor.press()).status == 429


async def test_forms_of_the_sign_in_come_from_our_pages_only(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        await people.person("member", "ann@shop.test")
        visitor = Visitor(people.shop)
        await visitor.request_link("ann@shop.test")
        await visitor.open_link(await people.link())
        for path in ("sign-in/mail", "sign-in/link", "sign-in/account", "sign-in"):
            for origin in ("https://evil.test", "null", "http://api.test"):
                got = await visitor.post(path, {"email": "ann@shop.test"}, origin=origin)
                assert (got.status, visitor.is_signed_in) == (403, False), (path, origin)


@pytest.mark.parametrize(
    "target", ["https://evil.test/", "//evil.test", "/dashboard/../v1", "/v1", "/dashboard/sign-in"]
)
async def test_a_link_leads_to_our_own_pages_only(target: str, autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        await people.person("member", "ann@shop.test")
        visitor = Visitor(people.shop)
        await visitor.request_link("ann@shop.test", next=target)
        await visitor.open_link(await people.link())
        assert (await visitor.press()).headers["location"] == HOME


async def test_no_address_and_a_wrong_one_are_no_address(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        visitor = Visitor(people.shop)
        for email in ("", "ann", "ann@shop.test\r\nBcc: eve@evil.test"):
            got = await visitor.request_link(email)
            assert (got.status, b"This is not an e-mail address." in got.octets) == (400, True)


async def test_an_address_with_several_accounts_chooses_one_once(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        other = await people.shop.store.create_account("other@shop.test", "builder")
        await people.person("viewer", "ann@shop.test")
        chosen = await people.person("owner", "ann@shop.test", other.id)
        eve = await people.person("owner", "eve@shop.test")
        visitor = Visitor(people.shop)
        await visitor.request_link("ann@shop.test")
        await visitor.open_link(await people.link())
        page = (await visitor.press()).octets.decode()
        assert "other@shop.test (owner)" in page
        assert not visitor.is_signed_in
        choice = page.partition('name="choice" value="')[2].partition('"')[0]
        forged = {"choice": "x" + choice[1:], "person": chosen.id}
        assert (await visitor.post("sign-in/account", forged)).status == 403
        fields = {"choice": choice, "person": chosen.id}
        assert (await visitor.post("sign-in/account", fields)).status == 303
        assert b"People" in (await visitor.get("people")).octets
        again = Visitor(people.shop, client="203.0.113.1")
        for person in (chosen, eve):
            got = await again.post("sign-in/account", {"choice": choice, "person": person.id})
            assert (got.status, again.is_signed_in) == (403, False)


async def test_a_choice_opens_no_account_of_another_address(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        other = await people.shop.store.create_account("other@shop.test", "builder")
        for account_id in ("", other.id):
            await people.person("viewer", "ann@shop.test", account_id)
        eve = await people.person("owner", "eve@shop.test")
        visitor = Visitor(people.shop)
        await visitor.request_link("ann@shop.test")
        await visitor.open_link(await people.link())
        page = (await visitor.press()).octets.decode()
        choice = page.partition('name="choice" value="')[2].partition('"')[0]
        got = await visitor.post("sign-in/account", {"choice": choice, "person": eve.id})
        assert (got.status, visitor.is_signed_in) == (403, False)


async def test_a_key_signs_in_until_an_owner_has_come(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        key = {"key": people.shop.provisioning}
        await people.person("owner", "ann@shop.test")
        await people.active("member", "bob@shop.test")
        assert (await Visitor(people.shop).post("sign-in", key)).status == 303
        await people.signed_in("ann@shop.test")
        refused = Visitor(people.shop)
        got = await refused.post("sign-in", key)
        assert (got.status, b"This account has people." in got.octets) == (403, True)
        assert not refused.is_signed_in
        # without mail it is the way in
        people.shop.app = create_app(replace(people.shop.service, sign_in_mails=None))
        assert (await Visitor(people.shop).post("sign-in", key)).status == 303


async def test_a_service_without_mail_asks_for_the_key_alone(autojump_clock: Any) -> None:
    async with open_shop() as shop:
        page = (await Visitor(shop).get("sign-in")).octets
        assert b"Provisioning key" in page
        assert b"mail you a link" not in page
        assert (await Visitor(shop).request_link("ann@shop.test")).status == 404


async def test_an_invitation_signs_in_once(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        ann = await people.active("owner", "ann@shop.test")
        visitor = await people.signed_in(ann.email)
        await visitor.post("people", {"email": "bob@shop.test", "role": "viewer"})
        mail = await people.mail()
        assert mail["To"] == "bob@shop.test"
        text = mail.get_content()
        assert "ann@shop.test invites you" in text
        assert "role viewer" in text
        link, bob = link_of(mail), Visitor(people.shop, client="203.0.113.1")
        await bob.open_link(link)
        people.shop.clock.set(people.shop.clock() + INVITATIONS_KEPT - timedelta(seconds=1))
        assert (await bob.press()).status == 303
        eve = Visitor(people.shop, client="198.51.100.1")
        await eve.open_link(link)
        assert ((await eve.press()).status, eve.is_signed_in) == (403, False)


async def test_no_log_has_what_a_link_carries(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_people_shop() as people:
        await people.person("owner", "ann@shop.test")
        people.box.results = [SendResult("451 come back later")]
        visitor = Visitor(people.shop)
        await visitor.request_link("ann@shop.test")
        link = await people.link()
        await visitor.open_link(link)
        await visitor.press()
        assert "sign-in mail failed" in caplog.text
        assert link.partition("token=")[2] not in caplog.text
        page = await visitor.get("sign-in/link")
        assert page.headers["referrer-policy"] == "same-origin"


async def test_a_mail_is_tried_again_while_its_link_is_good(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        await people.person("owner", "ann@shop.test")
        people.box.results = [SendResult("451 greylisted")] * 2
        visitor = Visitor(people.shop)
        await visitor.request_link("ann@shop.test")
        await people.mail()
        assert len(people.box.tries) == 3
        await trio.sleep(60)  # a browser asks again after a minute
        people.box.results = [SendResult("550 no", final=True)]
        await visitor.request_link("ann@shop.test")
        await trio.sleep(1000)
        assert len(people.box.tries) == 4
        people.box.results = [SendResult("451 greylisted")] * 9
        await visitor.request_link("ann@shop.test")
        people.shop.clock.set(people.shop.clock() + LINKS_KEPT)
        tries = len(people.box.tries)
        await trio.sleep(1000)
        assert len(people.box.tries) == tries


async def test_an_address_that_cannot_be_written_to_stops_no_mail_of_others(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    mute = "=?utf-8?q?=0D=0ABcc?=@shop.test"
    async with open_people_shop() as people:
        for email in ("ann@shop.test", mute):
            await people.person("member", email)
        people.box.results = [SendResult("451 greylisted")]
        for email in ("ann@shop.test", mute):
            await Visitor(people.shop).request_link(email)
        await trio.sleep(60)
        assert len(people.box.taken) == 1
    assert "sign-in mail given up" in caplog.text
