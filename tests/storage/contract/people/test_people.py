"""Every store: the people of accounts, their sign-ins, and the links that sign in once."""

from datetime import timedelta

import pytest
import trio
from msgspec.structs import replace

from mailprobe.storage.audit import EntryFilter
from mailprobe.storage.list_records import KEY_REVOKED
from mailprobe.storage.people import links, people, sign_ins
from mailprobe.storage.people.links import (
    ADDRESS_LINKS_MAX,
    AGAIN_AFTER,
    INVITATIONS_KEPT,
    LINKS_KEPT,
    AskedLink,
    Link,
    NewLink,
)
from mailprobe.storage.people.people import LastOwner, Person, PersonExists, TooManyPeople
from mailprobe.storage.people.sign_ins import NewSignIn
from mailprobe.storage.records import COMMAND_LINE, Actor
from mailprobe.storage.store import Store
from tests.storage.contract.list_calls import running
from tests.storage.fixed_clock import RETENTION, Clock, make_caller

BY = Actor("session", person="ann@shop.test", address="192.0.2.7")
ASKED = NewLink("hash", "ann@shop.test", "browser", "192.0.2.0/24", "/dashboard/keys")


async def enter(store: Store, clock: Clock, person: Person, id: str = "s") -> str:
    """Sign in, and return the id of the key that the person acts by."""
    new = NewSignIn(id, clock() + timedelta(hours=12), "Firefox")
    caller = await store.begin_sign_in_of(new, person.id, replace(BY, person=person.email))
    assert caller is not None
    return caller.key.id


async def new_account(store: Store) -> str:
    return (await store.create_account("shop@shop.test", "builder")).id


async def test_people_are_invited_and_become_active_at_their_first_sign_in(
    store: Store, clock: Clock
) -> None:
    id = await new_account(store)
    at = clock()
    ann = await store.invite_person(id, "Ann@Shop.test", "owner", by=COMMAND_LINE)
    assert ann == Person(ann.id, id, "ann@shop.test", "owner", at)
    assert await store.people(id) == await store.people_with("ANN@shop.test") == [ann]
    assert not await store.has_active_owner(id)
    clock.advance(60)
    await enter(store, clock, ann)
    assert await store.people(id) == [replace(ann, active_at=clock(), seen_at=clock())]
    assert await store.has_active_owner(id)
    assert [(each.act.kind, each.by.person) for each in await store.audit(id)] == [
        ("signed_in", "ann@shop.test"), ("person_invited", None), ("account_created", None),
    ]  # fmt: skip


async def test_an_address_is_one_person_of_each_account(store: Store, clock: Clock) -> None:
    one, other = await new_account(store), await new_account(store)
    first = await store.invite_person(one, "ann@shop.test", "owner")
    second = await store.invite_person(other, "ann@shop.test", "viewer")
    with pytest.raises(PersonExists):
        await store.invite_person(one, "ANN@shop.test", "viewer")
    await enter(store, clock, second)
    assert [each.id for each in await store.people_with("ann@shop.test")] == [second.id, first.id]
    with pytest.raises(KeyError):
        await store.invite_person("no account", "ann@shop.test", "owner")
    assert not await store.change_role(one, second.id, "owner")
    assert not await store.remove_person(one, second.id)


@pytest.mark.parametrize(
    "email", ["\N{KELVIN SIGN}im@shop.test", "K\N{LATIN SMALL LETTER DOTLESS I}m@shop.test"]
)
async def test_an_address_with_letters_alike_is_nobodys(store: Store, email: str) -> None:
    await store.invite_person(await new_account(store), "kim@shop.test", "owner")
    assert await store.people_with(email) == []
    assert (await store.request_link(replace(ASKED, email=email))).to is None


async def test_the_number_of_people_is_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(people, "PEOPLE_MAX", 1)
    id = await new_account(store)
    await store.invite_person(id, "ann@shop.test", "owner")
    with pytest.raises(TooManyPeople):
        await store.invite_person(id, "bob@shop.test", "owner")


async def test_the_last_owner_who_has_signed_in_stays_owner(store: Store, clock: Clock) -> None:
    id = await new_account(store)
    ann = await store.invite_person(id, "ann@shop.test", "owner")
    bob = await store.invite_person(id, "bob@shop.test", "owner")
    await enter(store, clock, ann)
    with pytest.raises(LastOwner):
        await store.remove_person(id, ann.id)
    with pytest.raises(LastOwner):
        await store.change_role(id, ann.id, "member")
    assert await store.change_role(id, ann.id, "owner")
    await enter(store, clock, bob, "t")
    assert await store.change_role(id, ann.id, "viewer", by=BY)
    assert await store.remove_person(id, ann.id, by=BY)
    assert [each.id for each in await store.people(id)] == [bob.id]
    [changed] = await store.audit(id, EntryFilter("role_changed"))
    assert (changed.act.name, changed.act.changes, changed.by) == (
        "ann@shop.test", {"role": ("owner", "viewer")}, BY,
    )  # fmt: skip


async def test_two_owners_cannot_remove_one_another_at_once(store: Store, clock: Clock) -> None:
    id = await new_account(store)
    both = [await store.invite_person(id, f"{name}@shop.test", "owner") for name in ("a", "b")]
    for person in both:
        await enter(store, clock, person, person.id)
    refused = []

    async def remove(person: Person) -> None:
        try:
            await store.remove_person(id, person.id)
        except LastOwner:
            refused.append(person)

    async with trio.open_nursery() as nursery:
        for person in both:
            nursery.start_soon(remove, person)
    assert await store.people(id) == [
        replace(refused[0], active_at=clock(), seen_at=clock()) for _ in refused
    ]


async def test_an_owner_who_never_came_can_be_removed(store: Store) -> None:
    id = await new_account(store)
    ann = await store.invite_person(id, "misspelt@shop.test", "owner")
    assert await store.remove_person(id, ann.id)
    assert await store.people(id) == []


async def test_a_sign_in_ends_with_its_person_its_key_or_its_account(
    store: Store, clock: Clock
) -> None:
    id = await new_account(store)
    ann = await store.invite_person(id, "ann@shop.test", "member")
    key = await enter(store, clock, ann)
    found = await store.find_sign_in("s", id, key)
    assert found is not None
    assert found.person is not None
    assert (found.caller.account.id, found.caller.key.kind) == (id, "person")
    assert (found.person.id, found.person.role) == (ann.id, "member")
    assert await store.find_sign_in("s", await new_account(store), key) is None
    await store.revoke_key(id, key)
    assert await store.find_sign_in("s", id, key) is None
    again = await enter(store, clock, ann, "t")
    assert again != key
    await store.remove_person(id, ann.id)
    assert await store.find_sign_in("t", id, again) is None
    assert await store.listed_sign_ins(id) == []
    bob = await store.invite_person(id, "bob@shop.test", "member")
    of_bob = await enter(store, clock, bob, "u")
    await store.request_link(replace(ASKED, email="bob@shop.test"))
    await store.delete_account(id)
    assert await store.find_sign_in("u", id, of_bob) is None
    assert await store.people_with("bob@shop.test") == []
    assert await store.link("hash", "browser") is None


async def test_a_list_of_a_removed_person_pauses_as_one_of_a_revoked_key(
    store: Store, clock: Clock
) -> None:
    id = await new_account(store)
    ann = await store.invite_person(id, "ann@shop.test", "member")
    new = NewSignIn("s", clock() + timedelta(hours=12), "Firefox")
    caller = await store.begin_sign_in_of(new, ann.id, BY)
    assert caller is not None
    await running(store, caller, 1)
    await store.remove_person(id, ann.id)
    paused = await store.stored_list("list-1")
    assert paused is not None
    assert (paused.state, paused.cause) == ("paused", KEY_REVOKED)


async def test_the_key_of_a_person_is_not_among_the_accounts_keys(
    store: Store, clock: Clock
) -> None:
    caller = await make_caller(store)
    id = caller.account.id
    ann = await store.invite_person(id, "ann@shop.test", "owner")
    assert await enter(store, clock, ann) == await enter(store, clock, ann, "t")
    assert await store.keys(id) == [caller.key]


async def test_sign_ins_are_listed_until_they_end(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    id, until = caller.account.id, clock() + timedelta(hours=12)
    ann = await store.invite_person(id, "ann@shop.test", "owner")
    key = await enter(store, clock, ann)
    clock.advance(60)
    await store.begin_sign_in(NewSignIn("k", until, "B" * 999), id, caller.key.id, BY)
    by_key, of_ann = await store.listed_sign_ins(id)
    assert (by_key.email, by_key.key_prefix, by_key.browser) == (None, "sk_live_abcd", "B" * 200)
    assert (of_ann.email, of_ann.client, of_ann.browser) == (
        "ann@shop.test",
        "192.0.2.7",
        "Firefox",
    )
    clock.advance(600)
    await store.note_sign_in("s")
    assert [each.id for each in await store.listed_sign_ins(id)] == ["s", "k"]
    assert [each.seen_at for each in await store.people(id)] == [clock()]
    assert not await store.end_listed_sign_in("s", await new_account(store), BY)
    assert await store.end_listed_sign_in("s", id, BY)
    assert not await store.end_listed_sign_in("s", id, BY)
    assert await store.find_sign_in("s", id, key) is None
    await store.end_sign_in("k", until, id, BY)
    assert await store.listed_sign_ins(id) == []
    ended = await store.audit(id, EntryFilter("signed_out"))
    assert [each.act.name for each in ended] == [None, "ann@shop.test"]


async def test_a_sign_in_of_an_earlier_version_goes_on(store: Store) -> None:
    """It is in no list."""
    caller = await make_caller(store)
    found = await store.find_sign_in("earlier", caller.account.id, caller.key.id)
    assert found is not None
    assert (found.caller, found.person, found.seen_at) == (caller, None, None)


async def test_the_oldest_of_too_many_sign_ins_ends(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_ins, "SIGN_INS_MAX", 2)
    id = await new_account(store)
    ann = await store.invite_person(id, "ann@shop.test", "owner")
    for name in "abc":
        clock.advance(1)
        key = await enter(store, clock, ann, name)
    assert {each.id for each in await store.listed_sign_ins(id)} == {"b", "c"}
    assert await store.find_sign_in("a", id, key) is None
    clock.advance(13 * 3600)
    assert await store.listed_sign_ins(id) == []
    await store.apply_retention(RETENTION)


async def test_a_link_signs_in_once_in_the_browser_that_requested_it(
    store: Store, clock: Clock
) -> None:
    id = await new_account(store)
    await store.invite_person(id, "ann@shop.test", "owner")
    asked = await store.request_link(replace(ASKED, email="Ann@SHOP.test"))
    assert asked == AskedLink("ann@shop.test", clock() + LINKS_KEPT, clock() + AGAIN_AFTER)
    link = Link("ann@shop.test", None, "/dashboard/keys", clock() + LINKS_KEPT)
    assert await store.link("hash", "another") is await store.use_link("hash", "another") is None
    assert await store.link("hash", "browser") == await store.link("hash", "browser") == link
    used = []

    async def use() -> None:
        used.append(await store.use_link("hash", "browser"))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(use)
    assert sorted(used, key=bool) == [None, None, None, link]


async def test_a_link_is_good_for_fifteen_minutes(store: Store, clock: Clock) -> None:
    id = await new_account(store)
    await store.invite_person(id, "ann@shop.test", "owner")
    await store.request_link(ASKED)
    clock.advance(LINKS_KEPT.total_seconds() - 1)
    assert await store.link("hash", "browser") is not None
    clock.advance(1)
    assert await store.link("hash", "browser") is await store.use_link("hash", "browser") is None
    await store.apply_retention(RETENTION)


async def test_a_link_for_an_unknown_address_opens_nothing(store: Store) -> None:
    assert (await store.request_link(ASKED)).to is None
    assert await store.link("hash", "browser") is await store.use_link("hash", "browser") is None


@pytest.mark.parametrize(
    ("limit", "alike"),
    [
        ("ADDRESS_LINKS_MAX", {"client": "203.0.113.0/24"}),
        ("CLIENT_LINKS_MAX", {"email": "unknown@shop.test"}),
        ("ACCOUNT_LINKS_MAX", {"email": "bob@shop.test", "client": "203.0.113.0/24"}),
    ],
)
async def test_links_of_an_address_an_account_and_a_client_are_bounded(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, limit: str, alike: dict[str, str]
) -> None:
    monkeypatch.setattr(links, limit, 1)
    id = await new_account(store)
    for name in ("ann", "bob"):
        await store.invite_person(id, f"{name}@shop.test", "owner")
    first = await store.request_link(replace(ASKED, browser="first", **alike))
    assert first.to == (
        None if limit == "CLIENT_LINKS_MAX" else f"{'bob' if 'email' in alike else 'ann'}@shop.test"
    )
    second = await store.request_link(replace(ASKED, sha256="second"))
    assert (second.to, second.is_early) == (None, False)
    clock.advance(LINKS_KEPT.total_seconds())
    assert (await store.request_link(replace(ASKED, sha256="third"))).to == "ann@shop.test"


async def test_a_browser_asks_for_the_next_link_after_a_minute(store: Store, clock: Clock) -> None:
    """And for no more than an address gets."""
    begun = clock()
    waits = []
    for number in range(ADDRESS_LINKS_MAX + 1):
        asked = await store.request_link(replace(ASKED, sha256=f"{number}"))
        early = await store.request_link(replace(ASKED, sha256=f"early {number}"))
        assert early == replace(asked, is_early=True)
        waits.append((asked.again_at - begun).total_seconds())
        clock.advance((asked.again_at - clock()).total_seconds())
    assert waits == [60, 120, 900, 960]


async def test_others_do_not_use_up_the_links_of_a_browser_that_is_known(
    store: Store, clock: Clock
) -> None:
    id = await new_account(store)
    ann, bob = [
        await store.invite_person(id, f"{name}@shop.test", "owner") for name in ("ann", "bob")
    ]
    of_ann, of_bob = await enter(store, clock, ann, "a"), await enter(store, clock, bob, "b")
    sent: dict[str | None, list[str | None]] = {}
    for key in (None, of_bob, of_ann):
        sent[key] = [
            (
                await store.request_link(
                    replace(
                        ASKED, sha256=f"{key} {number}", known_key=key, browser=f"{key} {number}"
                    )
                )
            ).to
            for number in range(4)
        ]
    assert sent == {
        None: [*["ann@shop.test"] * 3, None], of_bob: [None] * 4, of_ann: sent[None],
    }  # fmt: skip


async def test_an_invitation_is_good_once_in_any_browser(store: Store, clock: Clock) -> None:
    id = await new_account(store)
    ann = await store.invite_person(id, "ann@shop.test", "viewer")
    assert await store.add_invitation("first", ann.id)
    assert await store.add_invitation("hash", ann.id)
    assert await store.link("first", "any") is None  # the later one took its place
    clock.advance(INVITATIONS_KEPT.total_seconds() - 1)
    link = await store.use_link("hash", "any")
    assert link is not None
    assert (link.person_id, link.email) == (ann.id, "ann@shop.test")
    assert await store.use_link("hash", "any") is None
    assert await store.add_invitation("hash", ann.id)
    await store.remove_person(id, ann.id)
    assert await store.use_link("hash", "any") is None
    assert not await store.add_invitation("hash", ann.id)


async def test_an_invitation_ends_with_the_first_sign_in(store: Store, clock: Clock) -> None:
    """It is good in any browser, so there is none for a person who came by another way."""
    ann = await store.invite_person(await new_account(store), "ann@shop.test", "viewer")
    assert await store.add_invitation("hash", ann.id)
    await enter(store, clock, ann)
    assert await store.use_link("hash", "any") is None
    assert not await store.add_invitation("hash", ann.id)
