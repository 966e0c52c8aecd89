"""What operators' own codes, greylisters, policy servers and bare links mean.

Each kind has its counter-examples: lines of nearly the same words that mean another thing.
"""

import pytest

from mailprobe.engine.smtp.replies.rules import CONDEMNS, Meaning, Step, load_rules
from mailprobe.engine.smtp.wire import SmtpReply

RULES = load_rules()


def read(line: str, step: Step = Step.RCPT):
    return RULES.read(step, SmtpReply(int(line[:3]), (line[4:],)))


# ------------------------------------------------ NetEase: help.163.com, codes of returned mail

OUR_ADDRESS = ["421 HL:REP", "421 HL:MEP 163 mx1", "554 HL:IHU", "554 HL:IPB", "450 WM:BLI"]
OUR_RATE = [
    *("421 HL:ICC", "421 HL:IFC 126 mx3", "421 HL:ITC", "450 MI:CEL", "450 MI:CCL", "451 MI:DMC"),
    *("450 RP:DRC", "450 RP:CCL", "451 RP:CEL", "451 MI:SFQ", "451 RP:QRC", "550 RP:TRC"),
    *("550 MI:STC", "554 MI:STC 163 smtp5"),
]
OUR_SENDER = ["550 MI:SPF mx14", "550 MI:IMF", "554 MI:SPB 163 smtp10,DsCowE", "450 WM:BLU"]


@pytest.mark.parametrize(
    ("lines", "meaning"),
    [
        (OUR_ADDRESS, Meaning.BLOCKED_POLICY),
        (OUR_RATE, Meaning.RATE_LIMITED),
        (OUR_SENDER, Meaning.SENDER_REFUSED),
        (["450 DT:RBL", "554 IP in blacklist", "550 MI:DMA"], Meaning.BLOCKED_POLICY),
        (["550 MI:NHD"], Meaning.BAD_HELO_OR_RDNS),
    ],
    ids=["address", "rate", "sender", "standing", "name"],
)
def test_a_code_of_netease_about_us(lines: list[str], meaning: Meaning):
    for line in lines:
        for step in (Step.BANNER, Step.MAIL, Step.RCPT):
            reading = read(line, step)
            if step is not Step.BANNER or meaning is not Meaning.SENDER_REFUSED:
                assert (reading.meaning, reading.about_us) == (meaning, True), (step, line)


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("550 RP:RCL", Meaning.ANOTHER_RECIPIENT),
        ("550 RP:FRL", Meaning.RELAY_DENIED),
        ("554 DT:SUM 163 mx8,PMCowABXb", Meaning.BLOCKED_POLICY),
        ("451 DT:SPM 163 mx8,PMCowABXb, please try again", Meaning.GREYLISTED),
        ("550 Invalid User: ann@163.com", Meaning.NO_MAILBOX),
        ("550 User suspended: ann@163.com", Meaning.DISABLED),
    ],
)
def test_a_code_of_netease_that_is_not_about_us(line: str, meaning: Meaning):
    reading = read(line)
    assert (reading.meaning, reading.about_us) == (meaning, False)


# ------------------------------------------------ greylisting


@pytest.mark.parametrize(
    "line",
    [
        "451 4.7.1 <ann@shop.test>: Recipient address rejected: Intentional policy rejection,"
        " please try again later",
        "450 4.7.1 <ann@shop.test>: Recipient address rejected: Policy Rejection- Please try later.",
        "450 4.7.1 <ann@shop.test>: Recipient address rejected: Policy Rejection- Greylisting"
        " challenge offered",
        "451 4.7.1 Try again later",
        "451 4.7.1 Please try again later",
        "451 4.7.1 <ann@shop.test>: Recipient address rejected: Try again later",
        "450 This mail is temporarily denied",
        "451 Internal resource temporarily unavailable",
        "451 Internal resources are temporarily unavailable - https://community.mimecast.com/docs",
        "451 4.7.1 <ann@shop.test>: Recipient address rejected: Policy restriction; retry in 5 minutes",
        "450 4.2.0 <ann@shop.test>: Recipient address rejected: Delayed by Postgrey",
        "421 4.2.0 Greylisted, please try again later",
    ],
)
def test_greylisting_however_it_is_said(line: str):
    reading = read(line)
    assert (reading.meaning, reading.about_us) == (Meaning.GREYLISTED, False)


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("450 4.7.1 Client host rejected by policy, try again later", Meaning.BLOCKED_POLICY),
        ("451 4.7.1 Your IP is temporarily rejected. Try again later", Meaning.BLOCKED_POLICY),
        ("450 4.7.1 SPF policy error, try again later", Meaning.SENDER_REFUSED),
        ("450 4.7.1 Policy: rate limit exceeded, try again later", Meaning.RATE_LIMITED),
        ("450 4.7.1 Policy Rejection- Quota exceeded, try again later", Meaning.RATE_LIMITED),
        ("450 4.7.1 Policy Rejection- Abuse. Go away.", Meaning.BLOCKED_POLICY),
        ("550 5.7.1 Rejected by local policy, try again later", Meaning.BLOCKED_POLICY),
        ("451 4.3.5 policy server error, try again later", Meaning.TEMPORARY),
        ("421 4.7.0 Try again later, closing connection.", Meaning.TEMPORARY),
        ("450 4.2.1 Try again later", Meaning.TEMPORARY),
        ("450 Mailbox temporarily unavailable", Meaning.TEMPORARY),
        ("452 4.2.2 Mailbox full, try again later", Meaning.MAILBOX_FULL),
    ],
)
def test_lines_that_resemble_greylisting_mean_something_else(line: str, meaning: Meaning):
    assert read(line).meaning is meaning


# ------------------------------------------------ quotas, links, refusals in other words


@pytest.mark.parametrize(
    ("line", "meaning", "about_us"),
    [
        ("554 5.7.1 Quota exceeded (number of mails in total)", Meaning.RATE_LIMITED, True),
        ("554 5.7.1 Quota exceeded (accumulated message size)", Meaning.RATE_LIMITED, True),
        ("554 5.7.1 Policy Rejection- Quota Exceeded.", Meaning.RATE_LIMITED, True),
        ("554 5.7.1 <a@b.test>: score exceeded", Meaning.BLOCKED_POLICY, True),
        ("550 spam score exceeded", Meaning.BLOCKED_POLICY, False),
        ("452 4.2.2 Quota exceeded (mailbox for user is full)", Meaning.MAILBOX_FULL, False),
        ("552 5.2.2 <a@b.test>: Quota exceeded", Meaning.MAILBOX_FULL, False),
        ("550 Mailbox quota exceeded", Meaning.MAILBOX_FULL, False),
    ],
)
def test_a_quota_is_the_senders_or_the_mailboxs(line: str, meaning: Meaning, about_us: bool):
    reading = read(line)
    assert (reading.meaning, reading.about_us) == (meaning, about_us)


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("550 http://www.openspf.org/Why?s=mfrom&id=a%40b.test&ip=192.0.2.1", "sender_refused"),
        ("550 5.7.1 Please see https://www.open-spf.org/Why?id=a", "sender_refused"),
        ("554 see https://shop.test/help/dmarc", "sender_refused"),
        ("550 https://help.shop.test/errors/12", "unknown"),
        ("551 <ann@shop.test> see https://help.shop.test/", "unknown"),
        ("552 https://help.shop.test/", "unknown"),
        ("550 see http://dnsbl.shop.test/", "blocked_policy"),
        ("550 5.1.1 https://help.shop.test/errors/12", "no_mailbox"),
        ("550 User unknown, see https://www.openspf.org/", "no_mailbox"),
        ("550 Mailbox unavailable. For explanation visit https://help.shop.test/", "no_mailbox"),
        ("550", "no_mailbox"),
    ],
)
def test_a_link_in_place_of_words(line: str, meaning: str):
    assert read(line).meaning.value == meaning


@pytest.mark.parametrize("step", [Step.BANNER, Step.MAIL])
def test_before_rcpt_a_bare_link_is_about_us(step: Step):
    assert read("554 https://help.shop.test/errors/12", step).about_us


def test_links_that_differ_only_in_what_no_rule_reads_share_a_reading():
    rules = load_rules()
    for number in range(20):
        text = f"Mailbox unavailable. See https://help.shop.test/case?r={number}"
        rules.read(Step.RCPT, SmtpReply(550, (text,)))
    assert len(rules.kept) == 1


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("550 No such user at this host, mail rejected", Meaning.NO_MAILBOX),
        ("550 Unknown user, message rejected", Meaning.NO_MAILBOX),
        ("550 Mailbox not found. http://service.mail.test/1 [IP: 192.0.2.1]", Meaning.NO_MAILBOX),
        ("550 mail to ann@shop.test not accepted here", Meaning.RELAY_DENIED),
        ("550 mail to ann@shop.test not accepted here (#5.1.1)", Meaning.RELAY_DENIED),
        ("550 recipient <ann@shop.test> denied", Meaning.BLOCKED_POLICY),
        ("551 ann@shop.test: user unknown or mailbox full", Meaning.UNKNOWN),
    ],
)
def test_a_refusal_in_other_words(line: str, meaning: Meaning):
    assert read(line).meaning is meaning


@pytest.mark.parametrize(
    "text",
    [
        "No such user agent, message rejected",
        "No such user in whitelist, mail rejected",
        "Unknown user in SPF record, mail refused",
        "Unknown recipients limit reached, mail rejected",
        "Mailbox unavailable for IP 192.0.2.1",
        "Mailbox unavailable. IP 192.0.2.1",
        "User unknown. Your IP 192.0.2.1 is not allowed",
        "mail to ann@shop.test not accepted from your network",
        "not user of this network",
        "You can only send from your own domain",
        "Recipient address denied",
    ],
)
def test_words_like_those_that_condemn_nobody(text: str):
    assert read(f"550 {text}").meaning not in CONDEMNS
