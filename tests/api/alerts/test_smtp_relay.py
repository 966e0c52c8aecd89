"""Sending a mail to a relay, on real sockets: to one that is slow, silent, rude or gone."""

import base64
import email
import email.policy
import logging
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any

import pytest
import trio
import trustme

from mailprobe.api.alerts.mail import compose
from mailprobe.api.alerts.smtp_relay import ACCEPTED, Relay, RelayMailer, SendResult
from mailprobe.api.alerts.thresholds import crossed
from mailprobe.storage.records import Account, Ledger
from tests.api.alerts.alerts_fixture import FEW, AlertsSetup
from tests.api.service_fixture import START

AUTHORITY = trustme.CA()
STAGES = ("connect", "EHLO", "MAIL", "RCPT", "DATA", ".", "QUIT")
SILENCE, HANG_UP = "(silence)", "(hang up)"


@dataclass
class FakeRelay:
    """A mail server with scripted replies, which records the commands that it receives."""

    says: dict[str, str] = field(default_factory=dict)
    features: Iterable[str] = ()  # in the reply to EHLO
    certificate: trustme.LeafCert | None = None
    tls: bool = False  # TLS from the first octet
    pause_s: dict[str, float] = field(default_factory=dict)  # stage -> pause before its reply
    received: list[str] = field(default_factory=list)  # commands; (TLS) stands for the handshake
    mails: list[bytes] = field(default_factory=list)
    port: int = 0
    met: int = 0  # number of connections

    def __post_init__(self) -> None:
        self._moved = trio.Event()

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            await self._moved.wait()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    async def serve(self, stream: Any) -> None:
        self.met += 1
        self._move()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with stream:
                if self.tls:
                    stream = self._tls(stream)
                await self._converse(stream)

    def _tls(self, stream: Any) -> trio.SSLStream[Any]:
        assert self.certificate
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.certificate.configure_cert(context)
        return trio.SSLStream(stream, context, server_side=True, https_compatible=True)

    async def _converse(self, stream: Any) -> None:
        received = bytearray()
        await self._send(stream, "connect", "220 relay.test ESMTP")
        while (line := await _line(stream, received)) is not None:
            verb = line.split(" ")[0].upper()
            self.received.append(
                re.sub("^(mail FROM|rcpt TO):", lambda verb: verb[0].lower(), line)
            )
            self._move()
            if verb == "DATA":
                await self._send(stream, verb, "354 go on")
                if self.says.get(verb, "354").startswith("354"):
                    await self._receive(stream, received)
            elif verb == "STARTTLS":
                await self._send(stream, verb, "220 ready")
                if verb in self.says:
                    continue
                stream, received = self._tls(stream), bytearray()
                await stream.do_handshake()
                self.received.append("(TLS)")
            elif verb == "EHLO":
                known = [
                    f for f in self.features if "(TLS)" not in self.received or f != "STARTTLS"
                ]
                lines = ["relay.test", *known]
                marks = "-" * (len(lines) - 1) + " "
                reported = (f"250{mark}{text}" for mark, text in zip(marks, lines, strict=True))
                await self._send(stream, verb, "\r\n".join(reported))
            else:
                replies = {"AUTH": "235 welcome", "QUIT": "221 bye"}
                await self._send(stream, verb, replies.get(verb, "250 ok"))

    async def _receive(self, stream: Any, received: bytearray) -> None:
        while b"\r\n.\r\n" not in received:
            received += await stream.receive_some(65_536) or b"\r\n.\r\n"
        octets, _, rest = bytes(received).partition(b"\r\n.\r\n")
        received[:] = rest
        self.mails.append(octets.replace(b"\r\n..", b"\r\n.") + b"\r\n")
        self._move()
        await self._send(stream, ".", "250 taken")

    async def _send(self, stream: Any, stage: str, reply: str) -> None:
        reply = self.says.get(stage, reply)
        await trio.sleep(self.pause_s.get(stage, 0))
        if reply == SILENCE:
            await trio.sleep_forever()
        if reply == HANG_UP:
            raise trio.BrokenResourceError
        await stream.send_all(f"{reply}\r\n".encode())


async def _line(stream: Any, received: bytearray) -> str | None:
    while b"\r\n" not in received:
        octets = await stream.receive_some(4096)
        if not octets:
            return None
        received += octets
    line, _, rest = bytes(received).partition(b"\r\n")
    received[:] = rest
    return line.decode()


@asynccontextmanager
async def open_relay(**how: Any) -> AsyncIterator[FakeRelay]:
    relay = FakeRelay(**how)
    async with trio.open_nursery() as nursery:
        with trio.fail_after(20):
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            relay.port = listener.socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, relay.serve, [listener])
            yield relay
        nursery.cancel_scope.cancel()


def towards(relay: FakeRelay, **more: Any) -> RelayMailer:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    how = {"tls": relay.tls, "name": "probe.test", "context": context}
    return RelayMailer(Relay("127.0.0.1", relay.port, **{**how, **more}))


def a_mail(to: str = "ann@example.org") -> EmailMessage:
    account = Account("an-account", to, "builder", START)
    month = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)
    ledger = Ledger(START, (), 15, 15, *month, 15, 0)
    (alert,) = crossed(FEW["builder"], ledger, account, capped=False)
    return compose(alert, account, dashboard_url="https://dash.test", sender="alerts@m.test")


def certificate() -> trustme.LeafCert:
    return AUTHORITY.issue_cert("127.0.0.1")


async def test_the_relay_gets_the_mail_byte_for_byte():
    async with open_relay() as relay:
        assert await towards(relay).send(a_mail()) == ACCEPTED
        assert relay.received == [
            "ehlo probe.test",
            "mail from:<alerts@m.test>",
            "rcpt to:<ann@example.org>",
            "DATA",
            "quit",
        ]
        assert relay.mails == [a_mail().as_bytes()]


async def test_from_the_use_to_the_relay():
    """In real time, with the URL that an operator writes."""
    office = AlertsSetup()
    account = await office.account()
    async with open_relay() as relay:
        url = f"smtp://127.0.0.1:{relay.port}"
        async with office.open(mailer=None, url=url) as alerts:
            alerts.watch(await office.use(account, 15), False)
            await relay.until(lambda: bool(relay.mails))
        (octets,) = relay.mails
    message = email.message_from_bytes(octets, policy=email.policy.default)
    assert message["Subject"] == "mailprobe: 75 % of the included verifications used"
    assert message["To"] == "ann@example.org"
    assert message["From"] == "mailprobe <alerts@mailprobe.test>"
    parts = {part.get_content_type(): part.get_content() for part in message.iter_parts()}
    assert set(parts) == {"text/plain", "text/html"}
    assert all("15 of 20 (75 %)" in text for text in parts.values())
    (letter,) = await office.messages()
    assert letter.sent_at


async def test_without_a_login_an_offered_starttls_is_let_be():
    async with open_relay(features=["STARTTLS", "AUTH PLAIN"]) as relay:
        assert await towards(relay).send(a_mail()) == ACCEPTED
        assert "STARTTLS" not in relay.received


async def test_a_login_waits_for_starttls():
    features = ["STARTTLS", "AUTH LOGIN PLAIN"]
    async with open_relay(features=features, certificate=certificate()) as relay:
        mailer = towards(relay, user="mail", password="secret")
        assert await mailer.send(a_mail()) == ACCEPTED
        assert relay.received[:4] == ["ehlo probe.test", "STARTTLS", "(TLS)", "ehlo probe.test"]
        assert base64.b64decode(relay.received[4].split(" ")[2]) == b"\0mail\0secret"
        assert relay.mails == [a_mail().as_bytes()]


async def test_smtps_is_encrypted_from_the_first_octet():
    async with open_relay(features=["AUTH PLAIN"], certificate=certificate(), tls=True) as relay:
        assert await towards(relay, user="mail", password="x").send(a_mail()) == ACCEPTED
        assert relay.received[1].startswith("AUTH PLAIN ")
        assert len(relay.mails) == 1


@pytest.mark.parametrize("tls", [False, True])
async def test_a_certificate_that_nobody_vouches_for_gets_no_password(tls, caplog):
    how = {"features": ["STARTTLS", "AUTH PLAIN"], "tls": tls, "certificate": certificate()}
    async with open_relay(**how) as relay:
        strict = ssl.create_default_context()
        send_result = await towards(relay, user="mail", password="x", context=strict).send(a_mail())
        assert "certificate" in (send_result.why or "").lower()
        assert not send_result.final
        assert not [line for line in relay.received if line.startswith("AUTH")]


async def test_a_certificate_of_another_host_gets_no_password():
    other = AUTHORITY.issue_cert("other.test")
    async with open_relay(features=["STARTTLS", "AUTH PLAIN"], certificate=other) as relay:
        send_result = await towards(relay, user="mail", password="x").send(a_mail())
        assert "certificate" in (send_result.why or "").lower()


async def test_a_password_in_the_clear_stays_on_this_machine(monkeypatch):
    """An attacker in between can remove STARTTLS from the reply to EHLO."""
    async with open_relay(features=["AUTH PLAIN"]) as relay:
        mailer = towards(relay, user="mail", password="x")
        assert await mailer.send(a_mail()) == ACCEPTED
        monkeypatch.setattr("mailprobe.api.alerts.smtp_relay.is_this_machine", lambda sock: False)
        send_result = await mailer.send(a_mail())
        assert "STARTTLS" in (send_result.why or "")
        assert len(relay.mails) == 1


async def test_the_error_of_a_refused_login_leaves_out_the_relays_text():
    says = {"AUTH": "535 5.7.8 no: AG1haWwAc2VjcmV0 secret"}
    async with open_relay(features=["AUTH PLAIN"], says=says) as relay:
        send_result = await towards(relay, user="mail", password="secret").send(a_mail())
        assert send_result == SendResult("the login was refused with 535")


@pytest.mark.parametrize(
    ("features", "says", "password"),
    [
        ([], {}, "pass"),
        (["AUTH GSSAPI"], {}, "pass"),
        (["AUTH CRAM-MD5"], {"AUTH": "334 !!!not base64"}, "pass"),
        (["AUTH PLAIN"], {"AUTH": "334 "}, "pass"),
        (["AUTH PLAIN"], {}, "pässword"),
        (["STARTTLS", "AUTH PLAIN"], {"STARTTLS": "454 not now"}, "pass"),
    ],
)
async def test_a_login_that_cannot_be_made_is_a_fate(features, says, password):
    async with open_relay(features=features, says=says) as relay:
        send_result = await towards(relay, user="mail", password=password, delivery_s=1.0).send(
            a_mail()
        )
        assert send_result.why
        assert not send_result.final
        assert password not in send_result.why


@pytest.mark.parametrize("stage", STAGES[:-1])
@pytest.mark.parametrize("reply", ["450 later", "550 no", "421 bye", HANG_UP, "what?", "", "999"])
async def test_any_reply_of_a_relay_is_a_result(stage, reply):
    """Only a permanent refusal of the recipient is final: an operator can fix the rest."""
    says = {stage: reply, "HELO": reply} if stage == "EHLO" else {stage: reply}
    async with open_relay(says=says) as relay:
        send_result = await towards(relay).send(a_mail())
        assert send_result.why
        assert send_result.final == (stage == "RCPT" and reply == "550 no")


async def test_an_old_relay_is_greeted_as_it_likes():
    async with open_relay(says={"EHLO": "502 what?"}) as relay:
        assert await towards(relay).send(a_mail()) == ACCEPTED
        assert relay.received[:2] == ["ehlo probe.test", "helo probe.test"]


@pytest.mark.parametrize("stage", STAGES[:-1])
async def test_a_silent_relay_is_left(stage):
    async with open_relay(says={stage: SILENCE}) as relay:
        send_result = await towards(relay, delivery_s=0.2, answer_s=0.1).send(a_mail())
        assert send_result == SendResult("the relay took too long")


async def test_a_relay_that_is_silent_in_the_handshake_is_left():
    async with open_relay(says={"connect": SILENCE}) as relay:
        send_result = await towards(relay, tls=True, delivery_s=0.2).send(a_mail())
        assert send_result == SendResult("the relay took too long")


async def test_a_relay_that_drips_is_left():
    """Each octet comes within smtplib's timeout, and the line would never end."""

    async def drip(stream: Any) -> None:
        with suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"2")
                await trio.sleep(0.02)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, drip, [listener])
        port = listener.socket.getsockname()[1]
        with trio.fail_after(10):
            send_result = await RelayMailer(Relay("127.0.0.1", port, False, delivery_s=0.3)).send(
                a_mail()
            )
        nursery.cancel_scope.cancel()
    assert send_result == SendResult("the relay took too long")


async def test_a_relay_that_files_slowly_is_waited_for():
    """The relay has the mail: giving up now would send a duplicate later (RFC 1047)."""
    async with open_relay(pause_s={".": 1.2}) as relay:
        assert await towards(relay, delivery_s=1.0, answer_s=9).send(a_mail()) == ACCEPTED


@pytest.mark.parametrize("reply", [HANG_UP, "500 what?", "nonsense"])
async def test_after_the_yes_nothing_can_go_wrong(reply):
    async with open_relay(says={"QUIT": reply}) as relay:
        assert await towards(relay).send(a_mail()) == ACCEPTED


async def test_a_relay_that_is_silent_after_its_yes_has_the_mail(monkeypatch):
    monkeypatch.setattr("mailprobe.api.alerts.smtp_relay.QUIT_S", 0.1)
    async with open_relay(says={"QUIT": SILENCE}) as relay:
        assert await towards(relay, delivery_s=5).send(a_mail()) == ACCEPTED


async def test_a_refused_connection_is_a_result(unused_port):
    send_result = await RelayMailer(Relay("127.0.0.1", unused_port, False)).send(a_mail())
    assert "refused" in (send_result.why or "").lower()


@pytest.fixture
async def unused_port() -> int:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    return int(port)


async def test_a_name_that_is_none_is_a_fate():
    for host in ("a" * 64 + ".test", "x..y"):
        assert (await RelayMailer(Relay(host, 25, False)).send(a_mail())).why


async def test_a_temporarily_refused_mail_is_accepted_later():
    async with open_relay(says={"RCPT": "450 4.7.1 greylisted"}) as relay:
        mailer = towards(relay)
        assert await mailer.send(a_mail()) == SendResult("450 4.7.1 greylisted")
        relay.says.clear()
        assert await mailer.send(a_mail()) == ACCEPTED
        assert len(relay.mails) == 1


async def test_a_relays_reply_can_be_logged():
    says = {"RCPT": "550 5.1.1 <Ann@Example.org>: \x1b[31mno\x00 " + "long " * 90}
    async with open_relay(says=says) as relay:
        send_result = await towards(relay).send(a_mail())
        assert send_result.why
        assert send_result.why.startswith("550 5.1.1 <a…@example.org>: ")
        assert send_result.why.isprintable()
        assert len(send_result.why) <= 200


async def test_an_address_of_another_script_needs_a_relay_that_knows_them():
    mail = a_mail("jösé@bücher.test")
    async with open_relay(features=["SMTPUTF8", "8BITMIME"]) as relay:
        assert await towards(relay).send(mail) == ACCEPTED
        assert relay.received[1:3] == [
            "mail from:<alerts@m.test> SMTPUTF8",
            "rcpt to:<jösé@xn--bcher-kva.test>",
        ]
        assert "To: jösé@xn--bcher-kva.test".encode() in relay.mails[0]
        relay.features = ()
        send_result = await towards(relay).send(mail)
        assert send_result.why
        assert not send_result.final


async def test_a_line_that_begins_with_a_dot_arrives_as_it_was():
    mail = EmailMessage(email.policy.SMTP)
    mail["From"], mail["To"] = "a@b.test", "c@d.test"
    mail.set_content("one\n.\n..two\n\n.three\n")
    async with open_relay() as relay:
        assert await towards(relay).send(mail) == ACCEPTED
        assert relay.mails == [mail.as_bytes()]


@pytest.mark.parametrize("stage", STAGES)
async def test_a_cancelled_send_leaves_no_connection(stage):
    """Cancelled at every stage; the thread ends with the send."""
    async with open_relay(says={stage: SILENCE}) as relay:
        mailer = towards(relay)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mailer.send, a_mail())
            await relay.until(lambda: reached(relay, stage))
            nursery.cancel_scope.cancel()
        relay.says.clear()
        with trio.fail_after(5):  # the one thread is free again
            assert await mailer.send(a_mail()) == ACCEPTED


def reached(relay: FakeRelay, stage: str) -> bool:
    if stage == "connect":
        return relay.met > 0
    if stage == ".":
        return bool(relay.mails)
    return any(line.upper().startswith(stage) for line in relay.received)


async def test_no_line_of_the_log_holds_the_password(caplog):
    office = AlertsSetup()
    caplog.set_level(logging.DEBUG)
    account = await office.account()
    says = {"AUTH": "535 5.7.8 secret is wrong"}
    async with open_relay(features=["AUTH PLAIN"], says=says) as relay:
        url = f"smtp://mail:secret@127.0.0.1:{relay.port}"
        async with office.open(mailer=None, url=url) as alerts:
            alerts.watch(await office.use(account, 15), False)
            await relay.until(lambda: any(line.startswith("AUTH") for line in relay.received))
    assert "535" in caplog.text
    assert "secret" not in caplog.text
    assert "ann@" not in caplog.text
