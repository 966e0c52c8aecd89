"""The page of people: who is invited, by whom, what becomes of their sign-ins, and the audit log."""

from typing import Any

import pytest
import trio

from mailprobe.api.pages.dashboard.people.people_page import browser_of
from mailprobe.storage.audit import EntryFilter
from mailprobe.storage.people import people as stored
from mailprobe.storage.people.sign_ins import ListedSignIn
from tests.api.lists.test_lists import open_list_shop
from tests.api.pages.people.visitor import HOME, Visitor, open_people_shop
from tests.api.service_fixture import open_shop
from tests.storage.fixed_clock import NOON


async def test_an_account_without_people_begins_with_an_owner(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        visitor = Visitor(people.shop)
        await visitor.post("sign-in", {"key": people.shop.provisioning})
        page = (await visitor.get("people")).octets
        assert b"Begin with yourself, as owner." in page
        assert b'value="ann@example.org"' in page
        assert (
            await visitor.post("people", {"email": "Ann@Example.org", "role": "owner"})
        ).status == 303
        [ann] = await people.shop.store.people(people.shop.account.id)
        assert (ann.email, ann.role, ann.active_at) == ("ann@example.org", "owner", None)
        [entry] = await people.shop.store.audit(
            people.shop.account.id, EntryFilter("person_invited")
        )
        assert (entry.by.key_prefix, entry.by.person) == (people.shop.provisioning[:12], None)


async def test_the_audit_log_names_the_person(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        await people.active("owner", "ann@shop.test")
        ann = await people.signed_in("ann@shop.test")
        await ann.post("people", {"email": "bob@shop.test", "role": "viewer"})
        await ann.post("keys", {"label": "shop", "kind": "live"})
        page = (await ann.get("audit")).octets.decode()
        assert "bob@shop.test: role viewer" in page
        assert page.count('data-label="Who">ann@shop.test</td>') >= 3
        got = await people.shop.request(
            "GET", "/v1/audit?kind=key_created&limit=1", key=people.shop.provisioning
        )
        [entry] = got.body["entries"]
        assert (entry["actor"], entry["actor_email"]) == ("session", "ann@shop.test")
        assert entry["actor_key_id"] is entry["actor_key_prefix"] is None


async def test_a_role_holds_from_the_next_request(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        await people.active("owner", "ann@shop.test")
        bob = await people.active("member", "bob@shop.test")
        ann, of_bob = [await people.signed_in(f"{name}@shop.test") for name in ("ann", "bob")]
        assert (await of_bob.post("try", {"email": "ann@friendly.test"})).status == 200
        assert (await ann.post(f"people/{bob.id}/role", {"role": "viewer"})).status == 303
        assert (await of_bob.post("try", {"email": "ann@friendly.test"})).status == 403
        assert (await ann.post(f"people/{bob.id}/role", {"role": "owner"})).status == 303
        assert (await of_bob.get("people")).status == 200
        invited = await of_bob.post("people", {"email": "eve@shop.test", "role": "member"})
        assert invited.status == 303


async def test_a_removed_person_is_signed_out_at_once(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        await people.active("owner", "ann@shop.test")
        bob = await people.active("member", "bob@shop.test")
        ann, of_bob = [await people.signed_in(f"{name}@shop.test") for name in ("ann", "bob")]
        await ann.post(f"people/{bob.id}/remove")
        got = await of_bob.get("lists")
        assert (got.status, got.headers["location"]) == (303, f"{HOME}/sign-in?next={HOME}/lists")
        await of_bob.request_link("bob@shop.test")
        assert len(people.box.taken) == 2  # those of the two sign-ins


async def test_a_removed_person_shuts_nobody_out(autojump_clock: Any) -> None:
    """The person's browser is still known; its attempts are not those of the others."""
    async with open_people_shop() as people:
        await people.active("owner", "ann@shop.test")
        eve_id = (await people.active("member", "eve@shop.test")).id
        ann, eve = [await people.signed_in(f"{name}@shop.test") for name in ("ann", "eve")]
        assert (await ann.post(f"people/{eve_id}/remove")).status == 303
        answers = [(await eve.request_link("ann@shop.test")).status for _ in range(6)]
        assert answers == [200] * 5 + [429]
        taken = len(people.box.taken)
        assert (await ann.request_link("ann@shop.test")).status == 200
        await trio.sleep(60)
        assert len(people.box.taken) > taken


async def test_the_last_owner_stays(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        owner = await people.active("owner", "ann@shop.test")
        ann = await people.signed_in("ann@shop.test")
        for act, fields in (("remove", {}), ("role", {"role": "member"})):
            got = await ann.post(f"people/{owner.id}/{act}", fields)
            assert (got.status, b"This is the last owner." in got.octets) == (409, True)
        assert [each.role for each in await people.shop.store.people(people.shop.account.id)] == [
            "owner"
        ]


async def test_a_wrong_invitation_is_refused_with_its_reason(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "PEOPLE_MAX", 2)
    async with open_people_shop() as people:
        await people.active("owner", "ann@shop.test")
        ann = await people.signed_in("ann@shop.test")
        for email, words in (
            ("no address", b"This is not an e-mail address."),
            ("=?utf-8?q?=0D=0ABcc?=@shop.test", b"This is not an e-mail address."),
            ("ANN@shop.test", b"This address is there already."),
        ):
            got = await ann.post("people", {"email": email, "role": "viewer"})
            assert (got.status, words in got.octets) == (400, True), email
        await ann.post("people", {"email": "bob@shop.test", "role": "sultan"})
        roles = [each.role for each in await people.shop.store.people(people.shop.account.id)]
        assert roles == ["owner", "viewer"]  # an unknown role is the least
        got = await ann.post("people", {"email": "eve@shop.test", "role": "viewer"})
        assert b"An account has at most" in got.octets


async def test_invitations_are_throttled(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        await people.active("owner", "ann@shop.test")
        bob = await people.person("viewer", "bob@shop.test")
        ann = await people.signed_in("ann@shop.test")
        answers = [(await ann.post(f"people/{bob.id}/invite")).status for _ in range(6)]
        assert answers == [303] * 5 + [429]
        for path in ("people/nobody/invite", "people"):
            assert (await ann.post(path, {"email": "eve@shop.test"})).status == 429


async def test_an_address_gets_five_invitations_a_day(autojump_clock: Any) -> None:
    """Also one who is removed and invited in turn."""
    async with open_people_shop() as people:
        await people.active("owner", "ann@shop.test")
        ann = await people.signed_in("ann@shop.test")
        sent = []
        for _ in range(6):
            got = await ann.post("people", {"email": "Bob@shop.test", "role": "viewer"})
            sent.append(got.status)
            [_, bob] = await people.shop.store.people(people.shop.account.id)
            assert (await ann.post(f"people/{bob.id}/remove")).status == 303
            await trio.sleep(60)
        assert sent == [303] * 5 + [429]
        assert len([mail for mail in people.box.taken if mail["To"] == "bob@shop.test"]) == 5
        assert (await ann.post("people", {"email": "eve@shop.test"})).status == 303
        await trio.sleep(24 * 3600)
        assert (await ann.post("people", {"email": "bob@shop.test"})).status == 303


async def test_people_of_another_account_are_nobody(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        store = people.shop.store
        other = await store.create_account("other@shop.test", "builder")
        eve = await people.person("owner", "eve@shop.test", other.id)
        await people.active("owner", "ann@shop.test")
        ann = await people.signed_in("ann@shop.test")
        for act in ("role", "remove", "invite"):
            got = await ann.post(f"people/{eve.id}/{act}", {"role": "viewer"})
            assert got.status == (303 if act == "remove" else 404), act
        assert await store.people(other.id) == [eve]


async def test_sign_ins_are_listed_and_ended_by_an_owner(autojump_clock: Any) -> None:
    async with open_people_shop() as people:
        await people.active("owner", "ann@shop.test")
        await people.active("viewer", "bob@shop.test")
        ann, bob = [await people.signed_in(f"{name}@shop.test") for name in ("ann", "bob")]
        page = (await bob.get("people")).octets.decode()
        assert "Where you are signed in" in page
        assert "End the sign-in" not in page
        listed = await people.shop.store.listed_sign_ins(people.shop.account.id)
        of_bob = [each.id for each in listed if each.email == "bob@shop.test" and each.client]
        page = (await ann.get("people")).octets.decode()
        assert "End the sign-in of bob@shop.test" in page
        assert "this one" in page
        for id in of_bob:
            assert (await ann.post(f"people/sign-ins/{id}/end")).status == 303
        assert (await bob.get("people")).status == 303
        assert (await ann.get("people")).status == 200


async def test_a_service_without_mail_says_what_is_missing(autojump_clock: Any) -> None:
    async with open_shop() as shop:
        visitor = Visitor(shop)
        await visitor.post("sign-in", {"key": shop.provisioning})
        page = (await visitor.get("people")).octets
        assert b"MAILPROBE_ALERT_SMTP_URL" in page
        assert b'action="/dashboard/people"' not in page
        got = await visitor.post("people", {"email": "ann@shop.test", "role": "owner"})
        assert got.status == 404


async def test_a_list_of_a_member_is_the_accounts(autojump_clock: Any) -> None:
    """A list that a person sent is seen by the others, and is stopped by them."""
    async with open_people_shop(open_list_shop) as people:
        for name, role in (("ann", "owner"), ("bob", "member")):
            await people.active(role, f"{name}@shop.test")  # type: ignore[arg-type]
        ann, bob = [await people.signed_in(f"{name}@shop.test") for name in ("ann", "bob")]
        assert (await bob.post("start/sample")).status == 303
        [listed] = await people.shop.store.lists(people.shop.account.id, limit=9)
        path = f"lists/{listed.id}"
        assert (await ann.get(path)).status == 200
        assert (await ann.post(f"{path}/delete")).status == 303


@pytest.mark.parametrize(
    ("agent", "word"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox"),
        ("Mozilla/5.0 AppleWebKit/537.36 Chrome/140.0.0.0 Safari/537.36", "Chrome"),
        ("Mozilla/5.0 AppleWebKit/537.36 Chrome/140.0.0.0 Safari/537.36 Edg/140.0", "Edge"),
        ("Mozilla/5.0 AppleWebKit/605.1.15 Version/18.0 Safari/605.1.15", "Safari"),
        ("curl/8", "A program"),
        ("", "A program"),
    ],
)
def test_a_browser_has_a_word(agent: str, word: str) -> None:
    assert browser_of(ListedSignIn("s", None, "", NOON, NOON, None, agent)) == word
