"""Which codes condemn, and what is said of a count of recipients."""

import pytest

from mailprobe.engine.smtp.replies.rules import CONDEMNS, Meaning, ReplyMeaning, Step, load_rules
from mailprobe.engine.smtp.wire import SmtpReply

RULES = load_rules()


def at_rcpt(line: str) -> ReplyMeaning:
    return RULES.read(Step.RCPT, SmtpReply(int(line[:3]), (line[4:],)))


OTHER_CODES = [500, 501, 503, 511, 521, 530, 535, 557, 571, 580]


@pytest.mark.parametrize("code", OTHER_CODES)
@pytest.mark.parametrize(
    "text",
    [
        "User unknown",
        "Account disabled",
        "5.1.6 User unknown",
        "5.7.1 User unknown",
        "5.1.1",
        "5.1.1 Sorry",
        "5.2.1 Rejected",
        "5.1.10",
        "5.1.1 Sender unknown",
        "5.1.1 User unknown to our external directory",
        "",
    ],
)
def test_a_code_other_than_550_to_556_condemns_neither_by_words_nor_by_its_enhanced_code_alone(
    code: int, text: str
):
    assert RULES.read(Step.RCPT, SmtpReply(code, (text,))).meaning not in CONDEMNS


@pytest.mark.parametrize("code", OTHER_CODES)
@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("5.1.1 User unknown", Meaning.NO_MAILBOX),
        ("5.1.10 Recipient not found", Meaning.NO_MAILBOX),
        ("sorry, no mailbox here by that name (#5.1.1)", Meaning.NO_MAILBOX),
        ("5.2.1 Account disabled", Meaning.DISABLED),
    ],
)
def test_any_permanent_code_condemns_by_words_and_an_enhanced_code_that_agree(
    code: int, text: str, meaning: Meaning
):
    assert RULES.read(Step.RCPT, SmtpReply(code, (text,))).meaning is meaning


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("525 5.7.13 User account disabled", Meaning.DISABLED),
        ("540 5.7.1 <ann@shop.test>: recipient address rejected: Inactive", Meaning.DISABLED),
        ("585 <ann@shop.test>: No such user here", Meaning.NO_MAILBOX),
    ],
)
def test_codes_of_hosts_for_a_recipient_condemn_by_words(line: str, meaning: Meaning):
    assert at_rcpt(line).meaning is meaning
    assert at_rcpt(f"{line[:3]} Sorry").meaning not in CONDEMNS


# ------------------------------------------------ counts, and whom a reply blames


@pytest.mark.parametrize(
    "line",
    [
        "550 5.7.1 Number of failed recipients exceeded",
        "550 Maximum invalid recipients exceeded",
        "550 5.1.1 limit for unknown users reached",
        "550 More than 5 invalid recipients",
        "550 Zu viele unbekannte Empfänger",
        "550 无效收件人过多",
    ],
)
def test_a_count_of_refused_recipients_speaks_of_us(line: str):
    reading = at_rcpt(line)
    assert (reading.meaning, reading.about_us) == (Meaning.RATE_LIMITED, True)


@pytest.mark.parametrize(
    "line",
    [
        "550 Recipient limit has been exceeded for this message",
        "452 4.3.1 Recipient limit exceeded",
        "550 5.7.1 Maximum recipients per connection is 1",
        "550 Only one recipient at a time",
    ],
)
def test_a_limit_of_recipients_asks_for_another_transaction(line: str):
    reading = at_rcpt(line)
    assert (reading.meaning, reading.about_us) == (Meaning.ANOTHER_RECIPIENT, False)


def test_a_bare_452_4_3_1_is_temporary():
    assert at_rcpt("452 4.3.1").meaning is Meaning.TEMPORARY


def test_a_remote_server_that_knows_no_such_recipient_does_not_speak_of_us():
    reading = at_rcpt("550 5.1.351 Remote server returned unknown recipient")
    assert (reading.meaning, reading.about_us) == (Meaning.NO_MAILBOX, False)
