"""The page Try: what it offers and shows for an address, and what it spends."""

import json
import re
import shlex
from html import unescape

import pytest

from mailprobe.api.pages.dashboard.conversation import explained_turns, text_of, turns_of
from mailprobe.api.pages.dashboard.try_page import curl_of
from mailprobe.bench.world.host_description import HostAddress
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine.evidence import ConversationLine
from mailprobe.engine.verdict import Reason
from tests.api.pages.test_dashboard import signed_in
from tests.api.service_fixture import open_shop

HOSTILE = "o'brien\"$(id)`x`@friendly.test"


async def test_an_address_in_the_pages_own_fills_the_field_and_spends_nothing(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        got = await visitor.get("/try?email=ann%2Bx%40friendly.test")
        assert b'value="ann+x@friendly.test"' in got.octets
        assert b"data-tried" not in got.octets
        assert (await shop.store.ledger(await shop.caller())).month_units == 0


async def test_the_result_says_first_what_was_probably_meant(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        page = (await visitor.post("/try", {"email": "ann@gmial.com"})).octets.decode()
        advice = page.partition("data-tried")[2].partition("</section>")[0]
        assert "Did you mean gmail.com?" in advice
        assert 'name="email" value="ann@gmail.com"' in advice
        assert "hrowaway" not in advice
        assert 'data-kind="confirm"' in page


async def test_the_result_shows_what_to_do_why_and_what_was_said(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        page = (await visitor.post("/try", {"email": "ann@friendly.test"})).octets.decode()
        for words in (
            'data-kind="keep"',
            'data-why="Mailbox accepted"',
            ">deliverable<",
            "C: RCPT TO:",
        ):
            assert words in page
        found = re.search(r'id="as-json">(.*?)</code>', page, re.DOTALL)
        assert found
        assert json.loads(unescape(found[1]))["status"] == "deliverable"


@pytest.mark.parametrize(
    ("email", "words"),
    [
        ("ann@friendly.test", "The mail host accepts it now"),
        ("nobody@friendly.test", "does not say that it takes mail again"),
        ("ann@catchall.test", "as it does any made-up address"),
    ],
)
async def test_a_bounce_is_shown_with_what_the_host_says_now_and_forgotten(
    autojump_clock, email: str, words: str
):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        account = (await shop.caller()).account.id
        await shop.store.record_bounces(account, [email], "postmark")
        before = len(shop.world.dialled)
        page = (await visitor.post("/try", {"email": email})).octets.decode()
        assert "Mail to it came back (postmark, " in page
        assert "Ask the mail host all the same" in page
        assert len(shop.world.dialled) == before
        page = (await visitor.post("/try", {"email": email, "ask": "1"})).octets.decode()
        assert "Mail to it came back (postmark, " in page
        assert words in page
        assert "Ask the mail host all the same" not in page
        for _ in range(2):  # a second click changes nothing
            page = (await visitor.post("/bounces/forget", {"email": email})).octets.decode()
            assert "is forgotten" in page
        page = (await visitor.post("/try", {"email": email})).octets.decode()
        assert "Mail to it came back" not in page


async def test_a_limit_keeps_the_field_and_says_why(autojump_clock):
    async with open_shop("free") as shop:
        visitor = await signed_in(shop)
        await shop.use_up(500)
        got = await visitor.post("/try", {"email": "ann@friendly.test"})
        assert got.status == 429
        assert b'value="ann@friendly.test"' in got.octets
        assert b"used up" in got.octets


@pytest.mark.parametrize("email", [HOSTILE, "ann@friendly.test", "-d@x", "a\\b@c", "ü@ü.test"])
def test_the_line_for_a_shell_sends_exactly_the_address(email):
    words = shlex.split(curl_of("https://api.test", email, query="?evidence=1"))
    assert words[2] == "https://api.test/v1/email/verify?evidence=1"
    assert json.loads(words[-1]) == {"email": email}


def test_a_conversation_is_shown_by_commands_and_replies():
    """Commands may be sent at once; a refusal of several lines is shown whole."""
    said_lines = [
        ("client", "EHLO probe.test"),
        *(("server", text) for text in ("250-mx.test", "250-PIPELINING", "250 SIZE")),
        ("client", "MAIL FROM:<>"),
        ("client", "RCPT TO:<ann@x.test>"),
        ("server", "250 Ok"),
        *(("server", text) for text in ("550-5.1.1 No such user;", "550-see", "550 below")),
    ]
    lines = [ConversationLine(1.0, who, text) for who, text in said_lines]  # type: ignore[arg-type]
    turns = turns_of(lines)
    assert [(turn.is_ours, len(turn.lines)) for turn in turns] == [
        (True, 1), (False, 3), (True, 1), (True, 1), (False, 1), (False, 3),
    ]  # fmt: skip
    assert [turn.is_folded for turn in turns] == [False, True, *[False] * 4]
    assert text_of(lines).splitlines()[4:6] == ["C: MAIL FROM:<>", "C: RCPT TO:<ann@x.test>"]
    assert turns_of([]) == []


def said(*lines: tuple[str, str]) -> list[ConversationLine]:
    """A conversation: a line for each of (who, text), 10 ms apart."""
    return [
        ConversationLine(10.0 * place, "client" if who == "C" else "server", text)
        for place, (who, text) in enumerate(lines)
    ]


OPENED = (
    ("C", "(connect)"), ("S", "220 mx.test ESMTP"), ("C", "EHLO probe.test"), ("S", "250 mx.test"),
    ("C", "MAIL FROM:<>"), ("C", "RCPT TO:<ann@x.test>"), ("C", "RCPT TO:<made.up@x.test>"),
    ("S", "250 Ok"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("replies", "reason", "decides", "gloss"),
    [
        (("250 Ok", "550 No"), "accepted", "250 Ok", "This decides: the mailbox exists."),
        (("250 Ok", "250 Ok too"), "catch_all", "250 Ok too", "yes to every name"),
        (("550 No", "550 Nor"), "no_mailbox", "550 No", "this mailbox does not exist"),
        (("450 Later",), "greylisted", "450 Later", "come back later. This decides."),
        ((), "timeout", "(silence)", "Nothing for 1,000 ms. This decides."),
        ((), "host_error", "250 Ok", "This decides."),
    ],
)
def test_one_line_of_a_conversation_decides_and_says_why(
    replies: tuple[str, ...], reason: Reason, decides: str, gloss: str
) -> None:
    lines = said(*OPENED, *(("S", reply) for reply in replies))
    turns = explained_turns(lines, "Ann@x.test", reason, lines[-1].at_ms + 1000)
    [decider] = [turn for turn in turns if turn.decides]
    assert decider.lines == (decides,)
    assert gloss in decider.gloss


def test_each_command_and_reply_has_its_meaning() -> None:
    lines = said(*OPENED, ("S", "250 Ok"), ("S", "550 No"), ("C", "QUIT"), ("S", "220 other"))
    turns = explained_turns(lines, "ann@x.test", "accepted", 0)
    assert [turn.gloss for turn in turns] == [
        "",
        "Good day.",
        "Hello, this is our name.",
        "Welcome. This is what I can do.",
        "A mail without a sender.",
        "Would you take mail for ann?",
        "And for a name that we made up?",
        "Sender noted.",
        "Yes. This decides: the mailbox exists.",
        "No. So it does not say yes to every name.",
        "Goodbye. No message was sent.",
        "Good day.",
    ]


async def test_the_layers_after_a_failure_are_not_called_passed(autojump_clock):
    async with open_shop() as shop:
        visitor = await signed_in(shop)
        page = (await visitor.post("/try", {"email": "ann@@friendly.test"})).octets.decode()
        assert re.findall(r"<em>([^<]+)</em>", page) == ["failed", *["not asked"] * 4]
        assert "there is more than one @" in page
        assert "An earlier check decided, so no mail host was asked." in page


async def test_a_resting_host_has_not_refused_a_connection(autojump_clock):
    """That it took no connection would be said of a host that nobody tried."""
    async with open_shop("scale") as shop:
        visitor = await signed_in(shop)
        shop.world.add("closed.test", MailHost(address=HostAddress.REFUSED, name="mx.closed.test"))
        banner = "554 5.7.1 Service unavailable; client host blocked using zen.spamhaus.org"
        shop.world.add("strict.test", MailHost(banner=banner, name="mx.strict.test"))
        page = (await visitor.post("/try", {"email": "ann@closed.test"})).octets.decode()
        assert "No mail host took a connection." in page
        for number in range(9):  # until it is left alone
            await shop.verify(f"a{number}@strict.test")
        page = (await visitor.post("/try", {"email": "bob@strict.test"})).octets.decode()
        assert "not asked, resting" in page
        assert "No mail host was asked. Host refuses this machine." in page
        assert "took a connection" not in page
