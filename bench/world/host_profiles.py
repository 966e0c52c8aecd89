"""Typical mail hosts, by name.

The servers are as measured with their default limits (Postfix 3.7, Exim 4.96,
OpenSMTPD 6.8); the refusals are in the original words. `new_host` makes a new host each
time, so no two tests share a record.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

from .faults import (
    SHUTTING_DOWN,
    Close,
    Drip,
    Drop,
    Endless,
    Garbage,
    Half,
    Late,
    ReplyFault,
    ResetConnection,
    SendLine,
    StaySilent,
    Swap,
    Twice,
)
from .mail_host import EHLO_LINES, HostAddress, MailHost

POSTFIX = MailHost(
    recipients_max=1_000,
    refusals_free=10,
    refusals_max=20,
    default_unknown="550 5.1.1 <{rcpt}>: Recipient address rejected: "
    "User unknown in virtual mailbox table",
)
PLAIN = MailHost(  # of which nothing tells the software
    banner="220 {name} ESMTP ready",
    mailboxes=frozenset({"postmaster"}),
    recipients_max=1_000,
    default_unknown="550 5.1.1 <{rcpt}>: no such mailbox here",
)
EXIM = MailHost(
    banner="220 {name} ESMTP Exim 4.96 Mon, 01 Jan 2024 00:00:00 +0000",
    ehlo_lines=("SIZE 52428800", "8BITMIME", "PIPELINING", "PIPECONNECT", "CHUNKING", "PRDR"),
    mail_reply="250 OK",
    default_known="250 Accepted",
    default_unknown="550 Unrouteable address",
    relay_reply="550 relay not permitted",
    nonmail_max=11,
)
OPENSMTPD = MailHost(
    banner="220 {name} ESMTP OpenSMTPD",
    ehlo_lines=("8BITMIME", "ENHANCEDSTATUSCODES", "SIZE 36700160", "DSN", "HELP"),
    mail_reply="250 2.0.0 Ok",
    default_known="250 2.1.5 Destination address valid: Recipient ok",
    default_unknown="550 Invalid recipient: <{rcpt}>",
    relay_reply="550 Invalid recipient: <{rcpt}>",
    one_command_a_write=True,
    recipients_max=1_000,
    recipients_reply="451 4.5.3 Too many recipients",
)
EXCHANGE = MailHost(
    banner="220 {name} Microsoft ESMTP MAIL Service ready",
    ehlo_lines=(
        "SIZE 157286400",
        "PIPELINING",
        "DSN",
        "ENHANCEDSTATUSCODES",
        "8BITMIME",
        "BINARYMIME",
        "CHUNKING",
        "SMTPUTF8",
    ),
    mail_reply="250 2.1.0 Sender OK",
    default_known="250 2.1.5 Recipient OK",
    default_unknown="550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient <{rcpt}> not found "
    "by SMTP address lookup",
)
GOOGLE = MailHost(
    banner="220 {name} ESMTP a640c23a62f3a-00000000000si0000000000.000 - gsmtp",
    ehlo_lines=(
        "SIZE 157286400",
        "8BITMIME",
        "ENHANCEDSTATUSCODES",
        "PIPELINING",
        "CHUNKING",
        "SMTPUTF8",
    ),
    mail_reply="250 2.1.0 OK a640c23a62f3a-00000000000si0000000000.000 - gsmtp",
    default_known="250 2.1.5 OK a640c23a62f3a-00000000000si0000000000.000 - gsmtp",
    default_unknown="550-5.1.1 The email account that you tried to reach does not exist. Please try"
    "\n550-5.1.1 double-checking the recipient's email address for typos or"
    "\n550-5.1.1 unnecessary spaces. For more information, go to"
    "\n550 5.1.1  https://support.google.com/mail/?p=NoSuchUser a640c23a62f3a - gsmtp",
)

SPAMHAUS = (
    "554 5.7.1 Service unavailable; Client host [192.0.2.25] blocked using zen.spamhaus.org; "
    "https://www.spamhaus.org/query/ip/192.0.2.25"
)
NO_PTR = (
    "550 5.7.25 [192.0.2.25] The IP address sending this message does not have a PTR record setup"
)
BANNED = (
    "550 5.7.606 Access denied, banned sending IP [192.0.2.25]. To request removal from this list "
    "please visit https://sender.office.com/ and follow the directions"
)
FULL = "452 4.2.2 <{rcpt}>: Mailbox full"
OVER_QUOTA = "552 5.2.2 <{rcpt}>: The email account that you tried to reach is over quota"
DISABLED = "550 5.2.1 <{rcpt}>: The email account that you tried to reach is disabled"
NOT_NOW = "451 4.3.0 <{rcpt}>: Temporary lookup failure"
LATIN_1 = "550 5.1.1 <{rcpt}>: boîte aux lettres inconnue, désolé"
SHUT_OUT = "451 4.7.1 Too many messages from you on this connection, try again later"
NULL_SENDER = "550 5.7.1 <>: Sender address rejected: we do not accept mail from the null sender"
NAMED_SENDER = "550 5.7.1 Sender address rejected: not authorized to send as this sender"
NO_SMTPUTF8 = tuple(line for line in EHLO_LINES if line != "SMTPUTF8")
TLS_OFFERED = (*EHLO_LINES, "STARTTLS")
NO_PIPELINING = tuple(line for line in EHLO_LINES if line != "PIPELINING")


# 1,200 characters each, expensive for pattern matching; {local} makes each one different
HOSTILE_TEXTS = tuple(
    ("550 5.7.1 {local} " + words * 1_200)[:1_200]
    for words in (
        "email box ",
        "user name ",
        "user ",
        "mailbox mailbox ",
        "email id box ",
        "user mailbox ",
        "email user name ",
        "email address ",
        "a.b.c.d.e.f ",
        "1.2.3.4.5.6.7.8. ",
        "the user of the ",
        "recipient name ",
        "inbox inbox ",
        "mailbox is not is not ",
        "recipient address rejected ",
        "your ip 192.0.2.25 your ip ",
        "no such user user ",
        "mailbox <a@b.c> ",
        "<<<<a@b ",
        "1aa-" * 60 + " ",
    )
)
# What hosts say to one recipient too many; "" closes without a word, 421 with one
LIMIT_REPLIES = (
    "452 4.5.3 Too many recipients",
    "550 Recipient limit has been exceeded for this message",
    "550 5.7.1 Maximum recipients per connection is 1",
    "554 5.7.1 One recipient only please",
    "452 4.3.1 Insufficient system resources",
    "452 4.3.1 <{rcpt}> 4F3A9C: Insufficient system resources",
    "451 4.7.1 Try again later",
    "450 4.7.1 Error: too much mail",
    "552 Too many recipients",
    "550 5.5.3",
    "503 bad sequence of commands",
    "501 Too many",
    "550 Nur ein Empfänger je Nachricht erlaubt",
    "550 Un seul destinataire par message",
    "550 收件人过多",
    "421 4.7.0 Too many recipients",
    "",
    "550 5.1.1 <{rcpt}>: Recipient rejected, one message at a time please",
)
TARPIT_S = 5.0  # as Exchange delays by default (TarpitInterval)


def _to_everyone(reply: str) -> MailHost:
    """A host that gives this reply for every recipient."""
    return MailHost(default_known=reply, default_unknown=reply)


def _at(**faults: ReplyFault) -> MailHost:
    return MailHost(faults=faults)


HOST_PROFILES: Mapping[str, MailHost] = {
    # servers
    "friendly": MailHost(),
    "postfix": POSTFIX,
    "plain": PLAIN,
    "exim": EXIM,
    "opensmtpd": OPENSMTPD,
    "exchange": EXCHANGE,
    "google": GOOGLE,
    # variants that work
    "catch all": MailHost(catch_all=True),
    "helo only": MailHost(ehlo_reply="502 5.5.1 Error: command not implemented"),
    "no pipelining": MailHost(ehlo_lines=NO_PIPELINING),
    "no smtputf8": MailHost(ehlo_lines=NO_SMTPUTF8),
    "one recipient": MailHost(recipients_max=1),
    "one recipient declared": MailHost(
        ehlo_lines=(*EHLO_LINES, "LIMITS RCPTMAX=1"), recipients_max=1
    ),
    "few connections": MailHost(connections_max=2),
    "far away": MailHost(latency_s=0.05, connect_s=0.05),
    "laborious": MailHost(reply_s=0.05),
    "splitting": MailHost(splits=True),
    "slow banner": _at(CONNECT=Late(0.8)),
    "latin-1": MailHost(default_unknown=LATIN_1, encoding="latin-1"),
    # refusals
    "greylisting": MailHost(greylist_s=300.0),
    "blocklisted": _to_everyone(SPAMHAUS),
    "no reverse name": _to_everyone(NO_PTR),
    "banned": _to_everyone(BANNED),
    "blocked at mail": MailHost(mail_reply=SPAMHAUS),
    "blocked at banner": _at(CONNECT=SendLine(SPAMHAUS, close=True)),
    "full": MailHost(default_known=FULL),
    "over quota": MailHost(default_known=OVER_QUOTA),
    "disabled": MailHost(default_known=DISABLED),
    "not now": _to_everyone(NOT_NOW),
    # faults
    "refused": MailHost(address=HostAddress.REFUSED),
    "unanswered": MailHost(address=HostAddress.SILENT),
    "unreachable": MailHost(address=HostAddress.UNREACHABLE),
    "silent": _at(CONNECT=StaySilent()),
    "silent at ehlo": _at(EHLO=StaySilent()),
    "silent at mail": _at(MAIL=StaySilent()),
    "silent at rcpt": _at(RCPT=StaySilent()),
    "dripping": _at(CONNECT=Drip()),
    "dripping at ehlo": _at(EHLO=Drip()),
    "dripping at rcpt": _at(RCPT=Drip()),
    "stalling": _at(CONNECT=Half(stall=True)),
    "stalling at rcpt": _at(RCPT=Half(stall=True)),
    "late": _at(RCPT=Late(1.5)),
    "late banner": _at(CONNECT=Late(1.5)),
    "endless banner": _at(CONNECT=Endless()),
    "endless ehlo": _at(EHLO=Endless()),
    "endless line": _at(EHLO=Endless(line_octets=20_000)),
    "garbage": _at(CONNECT=Garbage()),
    "garbage at ehlo": _at(EHLO=Garbage()),
    "garbage at rcpt": _at(RCPT=Garbage()),
    "closing": _at(CONNECT=Close()),
    "closing at ehlo": _at(EHLO=Close()),
    "closing at mail": _at(MAIL=Close()),
    "closing at rcpt": _at(RCPT=Close()),
    "closing in mid reply": _at(RCPT=Half()),
    "resetting": _at(CONNECT=ResetConnection()),
    "resetting at rcpt": _at(RCPT=ResetConnection()),
    "shutting down": _at(CONNECT=SHUTTING_DOWN),
    "shutting down at ehlo": _at(EHLO=SHUTTING_DOWN),
    "shutting down at mail": _at(MAIL=SHUTTING_DOWN),
    "shutting down at rcpt": _at(RCPT=SHUTTING_DOWN),
    "421 at rcpt": _to_everyone("421 4.7.0 <{rcpt}>: Try again later, closing connection"),
    # slow for some recipients; existing ones are answered at once
    "tarpit": replace(EXCHANGE, unknown_delay_s=TARPIT_S),
    "tarpit in step": replace(
        EXCHANGE,
        unknown_delay_s=TARPIT_S,
        ehlo_lines=tuple(line for line in EXCHANGE.ehlo_lines if line != "PIPELINING"),
    ),
    "silent for some": MailHost(slow_s={"known.silent": inf}),
    "silent for some, in step": MailHost(slow_s={"known.silent": inf}, ehlo_lines=NO_PIPELINING),
    # restrict senders, or transactions
    "no null sender": MailHost(null_sender_reply=NULL_SENDER),
    "no null sender at rcpt": MailHost(null_sender_reply=NULL_SENDER, judges_sender_at_rcpt=True),
    "no named sender": MailHost(named_sender_reply=NAMED_SENDER),
    "one transaction": MailHost(recipients_max=1, mail_again_reply=SHUT_OUT),
    "stale": MailHost(stale_reply="421 4.4.2 Timeout, closing connection"),
    # require TLS
    "starttls offered": MailHost(ehlo_lines=TLS_OFFERED),
    "starttls demanded": MailHost(ehlo_lines=TLS_OFFERED, tls_demanded_at="MAIL"),
    "starttls demanded at rcpt": MailHost(ehlo_lines=TLS_OFFERED, tls_demanded_at="RCPT"),
    "starttls demanded, in step": MailHost(
        ehlo_lines=(*NO_PIPELINING, "STARTTLS"), tls_demanded_at="MAIL"
    ),
    "starttls demanded at rcpt, in step": MailHost(
        ehlo_lines=(*NO_PIPELINING, "STARTTLS"), tls_demanded_at="RCPT"
    ),
    "starttls demanded, not offered": MailHost(tls_demanded_at="MAIL"),
    "starttls demanded at rcpt, not offered": MailHost(tls_demanded_at="RCPT"),
    "starttls refused": MailHost(
        ehlo_lines=TLS_OFFERED,
        tls_demanded_at="MAIL",
        starttls_reply="454 4.7.0 TLS not available due to temporary reason",
    ),
    # wrong number or order of replies
    "doubling": _at(RCPT=Twice()),
    "doubling later": _at(RCPT=Twice(gap_s=0.005)),
    "dropping": MailHost(faults={"RCPT 2": Drop()}),
    "swapping": MailHost(faults={"RCPT 1": Swap()}),
    "hostile text": _to_everyone(HOSTILE_TEXTS[0]),
}


def limited_host(
    reply: str,
    *,
    per_transaction: int | None = None,
    per_connection: int | None = None,
    **changes: Any,
) -> MailHost:
    """A host that gives this reply to recipients beyond its limits: see LIMIT_REPLIES."""
    return MailHost(
        recipients_max=per_transaction,
        recipients_reply=reply,
        session_recipients_max=per_connection,
        session_recipients_reply=reply,
        **changes,
    )


def new_host(profile: str, name: str | None = None, **changes: object) -> MailHost:
    """A new host of this profile with an empty record; `changes` replace fields."""
    host = HOST_PROFILES[profile]
    if name is not None:
        changes["name"] = name
    return replace(host, **changes)  # type: ignore[arg-type]  # dataclasses checks the names
