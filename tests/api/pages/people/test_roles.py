"""What each role may do: every route of the dashboard, and every form of its pages."""

import re
from pathlib import Path
from typing import Any

import pytest
from quart import Quart

from mailprobe.api.pages.dashboard import roles
from mailprobe.api.pages.dashboard.roles import ANYONE, LEAST, may
from mailprobe.api.serve import create_app
from tests.api.lists.test_lists import ended, open_list_shop, send
from tests.api.pages.people.visitor import HOME, Visitor, open_people_shop
from tests.api.service_fixture import open_shop

TEMPLATES = Path(roles.__file__).parent / "templates" / "dashboard"
VALUES = {"id": "00000000-0000-4000-8000-000000000000", "place": "0", "number": "0"}
NOT_THE_ACCOUNTS = ("POST /dashboard/sign-out",)  # a viewer may end the own sign-in


def routes_of(app: Quart) -> set[str]:
    return {
        f"{method} {rule.rule}"
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith(HOME)
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }


def path_of(route: str) -> str:
    """A path of the route."""
    _, _, rule = route.partition(" ")
    rule = rule.replace("<any(pause, resume, cancel):word>", "pause")
    return re.sub(r"<(?:\w+:)?(\w+)>", lambda name: VALUES.get(name[1], "x"), rule)


async def test_every_route_is_in_the_table_once(autojump_clock: Any) -> None:
    async with open_shop() as shop:
        app: Any = create_app(shop.service)
        assert routes_of(app) == {*LEAST, *ANYONE}
        assert not set(LEAST) & set(ANYONE)


async def test_every_route_of_the_table_asks_for_a_sign_in(autojump_clock: Any) -> None:
    async with open_shop() as shop:
        for route in LEAST:
            method, _, _ = route.partition(" ")
            stranger = Visitor(shop)
            path = path_of(route)
            got = await (stranger.get(path) if method == "GET" else stranger.post(path))
            assert got.status == 303, route
            assert got.headers["location"].startswith(f"{HOME}/sign-in?"), route


def test_a_route_that_is_not_in_the_table_is_nobodys() -> None:
    assert not may("owner", "POST /dashboard/new")
    assert [may(role, "GET /dashboard") for role in roles.ROLES] == [True] * 3


@pytest.mark.parametrize("role", roles.ROLES)
async def test_a_role_is_refused_what_needs_more(role: Any, autojump_clock: Any) -> None:
    """Each route is asked for with a good token; nothing that is refused changes anything."""
    async with open_people_shop(operators=frozenset({"ann@example.org"})) as people:
        await people.active(role)
        visitor = await people.signed_in(f"{role}@shop.test")
        refused = {route for route in LEAST if not may(role, route)}
        before = await state_of(people.shop.store, people.shop.account.id)
        for route in sorted(refused):
            method, _, _ = route.partition(" ")
            path = path_of(route)
            got = await (visitor.get(path) if method == "GET" else visitor.post(path))
            assert got.status == 403, route
            assert f"A {role} may not do this.".encode() in got.octets, route
        assert await state_of(people.shop.store, people.shop.account.id) == before
        assert bool(refused) == (role != "owner")
        for route in ("GET /dashboard", "GET /dashboard/lists", "GET /dashboard/people"):
            assert (await visitor.get(path_of(route))).status == 200


async def state_of(store: Any, account_id: str) -> list[Any]:
    found = [await store.account(account_id), await store.keys(account_id)]
    found += [await store.people(account_id), await store.listed_sign_ins(account_id)]
    return [*found, await store.jobs(account_id=account_id, limit=9), await store.audit(account_id)]


async def test_a_viewer_sees_no_form_that_changes_something(autojump_clock: Any) -> None:
    """Every page that a viewer reaches by links, with a list and a key in the account."""
    async with open_people_shop(open_list_shop) as people:
        sent = await send(people.shop)
        await ended(people.shop, sent.body["list_id"])
        await people.active("owner", "ann@shop.test")
        await people.active("viewer")
        forms = {}
        for email in ("viewer@shop.test", "ann@shop.test"):
            visitor = await people.signed_in(email)
            forms[email] = await forms_reached(visitor)
        assert forms["viewer@shop.test"] == {f"{HOME}/sign-out"}
        assert len(forms["ann@shop.test"]) > 12


async def forms_reached(visitor: Visitor) -> set[str]:
    """The actions of all POST forms of all pages."""
    seen, left, forms = set(), [HOME], set()
    while left:
        path = left.pop()
        page = (await visitor.get(path)).octets.decode("utf-8", "replace")
        forms |= set(re.findall(r'<form[^>]*method="post"[^>]*action="([^"]+)"', page))
        for found in re.findall(rf'(?:href|hx-get)="({HOME}[^"#?]*)', page):
            if found not in seen and "/static/" not in found:
                seen.add(found)
                left.append(found)
    assert len(seen) > 8
    return forms


def test_every_form_is_written_so_that_it_can_be_left_out() -> None:
    """The frame finds forms by their beginning."""
    for path in TEMPLATES.glob("*.html"):
        text = path.read_text("utf-8")
        assert text.count('method="post"') == text.count('<form method="post" action="'), path.name
        assert "hx-post" not in re.sub(r"<form [^>]*>", "", text), path.name
