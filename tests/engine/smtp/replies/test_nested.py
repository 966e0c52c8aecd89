"""A reply that quotes another host's is judged by what it quotes, and only where that is final."""

import pytest

from mailprobe.engine.smtp.replies.nested import QuotedReply, quoted_reply
from mailprobe.engine.smtp.replies.rules import CONDEMNS, QUOTED, Meaning, Step, load_rules
from mailprobe.engine.smtp.wire import SmtpReply

RULES = load_rules()
CALLOUT = "Callout verification failed:"
REJECTED = "5.1.1 <ann@shop.test>: Recipient address rejected: "
SENDER_CHECKS = [
    "Sender verify failed: ",
    "Sender callout verification failed: ",
    "Callback setup failed while verifying <me@us.test>: ",
    "Verification failed for <me@us.test>: ",
    "5.1.0 <me@us.test>: Sender address rejected: undeliverable address: host mx said: ",
    "Bad return path, remote host said: ",
]


@pytest.mark.parametrize(
    ("lines", "quoted"),
    [
        (("5.1.1 User unknown",), None),
        (("Error: 500 messages per hour",), None),
        (("550 messages per hour",), None),
        (("Maximum exceeded: 550 recipients",), None),
        (("Mailbox 550 of shop.test is unknown",), None),
        (("Server said: 550 ",), None),
        (("550 5.1.1 User unknown",), QuotedReply(550, ("5.1.1 User unknown",))),
        ((CALLOUT, "550 No such user"), QuotedReply(550, ("No such user",))),
        ((f"{CALLOUT} 554-No",), QuotedReply(554, ("No",))),
        ((CALLOUT, "450-One", "450 Two"), QuotedReply(450, ("One Two",))),
        (("Host mx.b.test [192.0.2.1] said: 550 No",), QuotedReply(550, ("No",))),
        (("Server returned 550 No such user",), QuotedReply(550, ("No such user",))),
        (('<mx.b.test #5.0.0 smtp; 550 "No">',), QuotedReply(550, ('"No">',))),
        (("mx refused to talk to me: 554 Go",), QuotedReply(554, ("Go",), "CONNECT")),
        (
            ("mx said: 550 No (in reply to MAIL FROM command)",),
            QuotedReply(550, ("No (in reply to MAIL FROM command)",), "MAIL"),
        ),
        ((f"{REJECTED}undeliverable address: User unknown",), QuotedReply(None, ("User unknown",))),
        ((f"{REJECTED}undeliverable address: ",), None),
        ((f"{REJECTED}undeliverable address",), None),
        (('5.1.1 <"said: 550 No"@shop.test>: blocked',), None),
    ],
)
def test_a_reply_quotes_another_or_none(lines: tuple[str, ...], quoted: QuotedReply | None):
    assert quoted_reply(550, lines) == quoted


@pytest.mark.parametrize("check", SENDER_CHECKS)
def test_a_check_of_the_sender_quotes_nothing_about_the_recipient(check: str):
    assert quoted_reply(550, (f"{check}550 5.1.1 User unknown",)) is None
    reading = RULES.read(Step.RCPT, SmtpReply(550, (f"{check}550 5.1.1 User unknown",)))
    assert reading.meaning is Meaning.SENDER_REFUSED
    assert reading.about_us


def test_the_innermost_reply_counts():
    text = f"{REJECTED}undeliverable address: host a said: 550 {REJECTED}undeliverable address: "
    for inner, condemned in (
        ("host b said: 550 5.1.1 User unknown (in reply to RCPT TO command)", True),
        ("host b said: 451 4.3.0 Try again (in reply to RCPT TO command)", False),
        ("host b said: 450 4.1.1 User unknown (in reply to RCPT TO command)", False),
        ("mail for shop.test loops back to myself", False),
        ("User unknown", True),
    ):
        reading = RULES.read(Step.RCPT, SmtpReply(550, (text + inner,)))
        assert (reading.meaning in CONDEMNS) == condemned, inner


@pytest.mark.parametrize("verb", ["EHLO", "HELO", "MAIL FROM"])
def test_a_quoted_reply_to_another_command_condemns_nobody(verb: str):
    text = f"host mx said: 550 5.1.1 User unknown (in reply to {verb} command)"
    assert RULES.read(Step.RCPT, SmtpReply(550, (text,))).meaning not in CONDEMNS


@pytest.mark.parametrize(
    "inner",
    [
        "554 5.7.1 Service unavailable; Client host [192.0.2.9] blocked using zen.spamhaus.org",
        "550 5.7.25 No PTR record found",
        "550 5.1.8 Sender address rejected",
        "421 4.7.0 Too many connections from your IP",
        "530 5.7.0 Must issue a STARTTLS command first",
        "452 4.5.3 Too many recipients",
    ],
)
def test_words_about_the_quoting_host_are_not_about_us(inner: str):
    reading = RULES.read(Step.RCPT, SmtpReply(550, (f"host mx said: {inner}",)))
    assert not reading.about_us
    assert reading in QUOTED
    assert RULES.readings[reading.rule] == reading


@pytest.mark.parametrize("code", [501, 511, 571])
def test_a_code_that_condemns_nobody_does_so_neither_around_a_quoted_reply(code: int):
    def meaning(text: str) -> Meaning:
        return RULES.read(Step.RCPT, SmtpReply(code, (text,))).meaning

    assert meaning("Validation failed: 550 User unknown") not in CONDEMNS
    assert meaning("Validation failed: 550 5.1.1 User unknown") in CONDEMNS


def test_only_replies_to_rcpt_quote_another_host():
    reply = SmtpReply(550, ("Callout verification failed: 550 5.1.1 User unknown",))
    for step in (Step.BANNER, Step.HELLO, Step.MAIL):
        assert RULES.read(step, reply).meaning not in CONDEMNS


def test_an_address_is_never_read_as_a_quoted_reply():
    """The client chose it."""
    for name in ("said: 550 5.1.1 user unknown", "undeliverable address: user unknown"):
        reply = SmtpReply(550, (f'5.7.1 <"{name}"@shop.test>: Relay access denied',))
        assert RULES.read(Step.RCPT, reply).meaning is Meaning.RELAY_DENIED
