"""Sends the links that sign people in.

A link is a secret, so it is in no outbox and no log: a mail waits in this process, is tried for as
long as its link is good, and is lost with the process: its reader asks for another one. No request waits
for a mail, so that known and unknown addresses take the same time.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from email.message import EmailMessage
from email.utils import make_msgid

import trio

from mailprobe.engine.address import NotAnAddress
from mailprobe.engine.background import running_loops

from ..alerts.sender import relay_of, sender_of
from ..alerts.smtp_relay import (
    Mailer,
    RelayMailer,
    headed,
    instant_text,
    printable,
    recipient_of,
)
from ..error_table import Links
from ..observability.logs import shortened
from ..setting_values import host_name

log = logging.getLogger("mailprobe.sign_in")

WAITING_MAX = 200  # mails: far more than the limits of links let people ask for
PAUSES_S = (5.0, 30.0, 120.0, 300.0)  # after each failure; greylisting takes some minutes

LINK = """\
Somebody, most likely you, asked to sign in to mailprobe at
{dashboard_url}

This link signs you in:

{url}

Open it in the browser in which you asked. It works once, until {until}.
If you did not ask, delete this mail: nobody can sign in without it.
"""
INVITATION = """\
{by} invites you to mailprobe at
{dashboard_url}
with the role {role}.

This link signs you in:

{url}

It works once, until {until}. Afterwards, sign in with your e-mail address.
If you expect no invitation, delete this mail.
"""


@dataclass(frozen=True, slots=True)
class SignInMail:
    """A mail that waits. Its text has the link."""

    to: str
    subject: str
    text: str = field(repr=False)
    until: datetime
    tries: int = 0


class SignInMails:
    """The mails that this process has to send; made by `open_sign_in_mails()`."""

    def __init__(
        self, mailer: Mailer, sender: str, dashboard_url: str, now: Callable[[], datetime]
    ) -> None:
        self._mailer = mailer
        self._sender = sender
        self._dashboard_url = dashboard_url
        self._now = now
        self._due, self._queue = trio.open_memory_channel[SignInMail](WAITING_MAX)

    def send_link(self, to: str, token: str, until: datetime) -> None:
        """Send a link to sign in, soon."""
        text = LINK.format(
            dashboard_url=self._dashboard_url, url=self._url(token), until=instant_text(until)
        )
        self._enqueue(SignInMail(to, "Sign in to mailprobe", text, until))

    def send_invitation(self, to: str, token: str, until: datetime, role: str, by: str) -> None:
        """Send the link of an invitation, soon."""
        text = INVITATION.format(
            dashboard_url=self._dashboard_url, url=self._url(token), until=instant_text(until), role=role,
            by=by,
        )  # fmt: skip
        self._enqueue(SignInMail(to, "An invitation to mailprobe", text, until))

    def _url(self, token: str) -> str:
        return f"{self._dashboard_url}/sign-in/link?token={token}"

    def _enqueue(self, mail: SignInMail) -> None:
        try:
            self._due.send_nowait(mail)
        except trio.WouldBlock:
            log.warning("sign-in mail dropped: too many wait for the relay")

    async def run(self) -> None:
        """Send what is due, a mail at a time; one that failed comes again after its pause."""
        async with trio.open_nursery() as later:
            async for mail in self._queue:
                again = await self._try(mail)
                if again is not None and len(later.child_tasks) < WAITING_MAX:
                    later.start_soon(self._enqueue_later, again)

    async def _enqueue_later(self, mail: SignInMail) -> None:
        await trio.sleep(PAUSES_S[mail.tries - 1])
        self._enqueue(mail)

    async def _try(self, mail: SignInMail) -> SignInMail | None:
        """Send it; what is to be tried again, or None."""
        to = printable(shortened(mail.to))
        if self._now() >= mail.until:
            log.warning("sign-in mail given up: to=%s its link has ended", to)
            return None
        try:
            message = self._composed(mail)
        except NotAnAddress as error:
            log.warning("sign-in mail given up: to=%s error=%s", to, error)
            return None
        result = await self._mailer.send(message)
        if result.why is None:
            log.info("sign-in mail sent: to=%s", to)
            return None
        if result.final or mail.tries == len(PAUSES_S):
            log.warning("sign-in mail given up: to=%s error=%s", to, result.why)
            return None
        log.warning("sign-in mail failed: to=%s error=%s", to, result.why)
        return SignInMail(mail.to, mail.subject, mail.text, mail.until, mail.tries + 1)

    def _composed(self, mail: SignInMail) -> EmailMessage:
        message_id = make_msgid(domain=self._sender.rpartition("@")[2])
        message = headed(recipient_of(mail.to), mail.subject, self._now(), self._sender, message_id)
        message.set_content(mail.text)
        return message


@asynccontextmanager
async def open_sign_in_mails(
    links: Links,
    *,
    now: Callable[[], datetime],
    url: str | None,
    sender: str | None,
    mailer: Mailer | None = None,
) -> AsyncIterator[SignInMails | None]:
    """Send the mails of sign-ins for the duration of the block; None without a relay.

    Leaving the block drops what waits. Raises WrongSetting.
    """
    if mailer is None and url is not None:
        mailer = RelayMailer(relay_of(url))
    if mailer is None:
        yield None
        return
    mails = SignInMails(
        mailer, sender_of(sender or f"mailprobe@{host_name()}"), links.dashboard_url, now
    )
    async with running_loops(mails.run):
        yield mails
