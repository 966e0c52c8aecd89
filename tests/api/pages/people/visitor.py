"""A browser with its cookies, and a service that mails links to people."""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from html import unescape
from typing import Any
from urllib.parse import urlencode

import trio
from msgspec.structs import replace

from mailprobe.api.alerts.smtp_relay import ACCEPTED, SendResult
from mailprobe.api.sign_in.mails import open_sign_in_mails
from mailprobe.storage.people.people import Person, Role
from mailprobe.storage.people.sign_ins import NewSignIn
from mailprobe.storage.records import COMMAND_LINE
from tests.api.alerts.alerts_fixture import Mailbox
from tests.api.service_fixture import PLACES, HttpAnswer, LazyApp, RunningService, open_shop

HOME = "/dashboard"
FORM = {"content-type": "application/x-www-form-urlencoded"}
ORIGIN = "https://api.test"


@dataclass
class Visitor:
    """A browser that keeps cookies, sends tokens of forms, and follows no redirect."""

    shop: RunningService
    client: str = "192.0.2.7"
    csrf: str = ""
    email: str = ""  # that the page of a link's button shows
    cookies: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **headers: str) -> HttpAnswer:
        got = await self._ask("GET", path, b"", headers)
        found = re.search(rb'name="csrf" content="([0-9a-f]+)"', got.octets)
        self.csrf = found[1].decode() if found else self.csrf
        shown = re.search(rb'name="email" value="([^"]+)"', got.octets)
        self.email = unescape(shown[1].decode()) if shown else self.email
        return got

    async def post(
        self, path: str, fields: Mapping[str, str] | None = None, **headers: str
    ) -> HttpAnswer:
        body = urlencode({"csrf": self.csrf, **(fields or {})}).encode()
        return await self._ask("POST", path, body, {**FORM, "origin": ORIGIN, **headers})

    async def _ask(
        self, method: str, path: str, octets: bytes, headers: Mapping[str, str]
    ) -> HttpAnswer:
        sent = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        got = await self.shop.request(
            method, path if path.startswith("/") else f"{HOME}/{path}", octets=octets, key=None,
            headers={"cookie": sent or None, **headers}, client=self.client,
        )  # fmt: skip
        for line in got.headers.get("set-cookie", "").splitlines():
            name, _, rest = line.partition("=")
            value = rest.partition(";")[0]
            self.cookies[name] = value
            if not value:
                del self.cookies[name]
        return got

    @property
    def is_signed_in(self) -> bool:
        return "__Host-mailprobe_session" in self.cookies

    async def request_link(self, email: str, **fields: str) -> HttpAnswer:
        return await self.post("sign-in/mail", {"email": email, **fields})

    async def open_link(self, path: str) -> HttpAnswer:
        """Open the link of a mail, as far as the page of its button."""
        got = await self.get(path)
        return await self.get(got.headers["location"]) if got.status == 303 else got

    async def press(self) -> HttpAnswer:
        """The button of the link's page."""
        return await self.post("sign-in/link", {"email": self.email})


class Box(Mailbox):
    """A relay whose mails are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived, self.mails = trio.open_memory_channel[EmailMessage](99)

    async def send(self, message: EmailMessage) -> SendResult:
        result = await super().send(message)
        if result == ACCEPTED:
            self._arrived.send_nowait(message)
        return result


def link_of(mail: EmailMessage) -> str:
    """The path of the link in a mail."""
    found = re.search(
        rf"^{PLACES.dashboard_url}(/sign-in/link\?token=\S+)$", mail.get_content(), re.M
    )
    assert found is not None
    return HOME + found[1]


@dataclass
class PeopleShop:
    """The service, and what its relay was given."""

    shop: RunningService
    box: Box

    async def mail(self) -> EmailMessage:
        """The next mail; waits for it."""
        return await self.box.mails.receive()

    async def link(self) -> str:
        """The path of the next mail's link."""
        return link_of(await self.mail())

    async def person(self, role: Role, email: str = "", account_id: str = "") -> Person:
        """A person of the account who was invited."""
        store = self.shop.store
        id = account_id or self.shop.account.id
        found: Person = await store.invite_person(id, email or f"{role}@shop.test", role)
        return found

    async def active(self, role: Role, email: str = "") -> Person:
        """A person who has signed in before."""
        person = await self.person(role, email)
        new = NewSignIn(f"before {person.email}", self.shop.clock(), "Firefox/1")
        await self.shop.store.begin_sign_in_of(new, person.id, COMMAND_LINE)
        return person

    async def signed_in(self, email: str, **more: Any) -> Visitor:
        """Somebody who has signed in by a link."""
        visitor = Visitor(self.shop, **more)
        await visitor.request_link(email)
        await visitor.open_link(await self.link())
        assert (await visitor.press()).status == 303
        await visitor.get("people")
        await trio.sleep(60)  # the limits of sign-ins are not the subject
        return visitor


@asynccontextmanager
async def open_people_shop(
    opening: Callable[..., AbstractAsyncContextManager[RunningService]] = open_shop, **more: Any
) -> AsyncIterator[PeopleShop]:
    """Open a service that sends mails, by this function."""
    box = Box()
    async with (
        opening(**more) as shop,
        open_sign_in_mails(
            PLACES, now=shop.clock, url=None, sender="mailprobe@api.test", mailer=box
        ) as mails,
    ):
        shop.service = replace(shop.service, sign_in_mails=mails)
        shop.app = LazyApp(shop.service)
        yield PeopleShop(shop, box)
