"""Mail hosts with their products' default defences against address harvesting, by kind.

fail2ban's jail (five refused recipients in ten minutes), MDaemon's dynamic screening, Exim
as shipped, with the common recipe of rcpt_fail_count and as cPanel configures it, Forcepoint's
and Trend Micro's and Cisco's (AsyncOS) directory harvest prevention, Kerio Connect, Exchange's
tarpit, Postfix and its postscreen.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .host_defences import FIND_S, HOUR_S, Defence
from .host_profiles import EXCHANGE, EXIM, POSTFIX, TARPIT_S
from .mail_host import MailHost

DATE = "Thu, 26 Nov 2026 03:00:00 +0000"
CPANEL_BANNER = (
    f"220-{{name}} ESMTP Exim 4.96.2 #2 {DATE}"
    "\n220-We do not authorize the use of this system to transport unsolicited,"
    "\n220 and/or bulk e-mail."
)
TOO_MANY_FAILED = "421 {name} too many failed recipients from your address"
EXIM_DATED = replace(EXIM, banner=f"220 {{name}} ESMTP Exim 4.96 {DATE}")
FAIL2BAN = Defence(jail_refusals_max=4, ban_s=FIND_S, ban_delay_s=3.0, ban_reply="")
GATEWAY = MailHost(banner="220 {name} ESMTP Service ready", recipients_max=1_000)

DEFENDED_HOSTS: Mapping[str, MailHost] = {
    "fail2ban": MailHost(  # any server may have it, and nothing shows it
        banner="220 {name} ESMTP ready",
        default_unknown="550 5.1.1 <{rcpt}>: no such mailbox",
        defence=FAIL2BAN,
    ),
    "mdaemon": MailHost(
        banner=f"220 {{name}} ESMTP MDaemon 23.5.3; {DATE}",
        mail_reply="250 2.1.0 Sender OK",
        default_known="250 2.1.5 Recipient OK",
        default_unknown="550 5.1.1 Recipient unknown <{rcpt}>",
        defence=Defence(
            refusal_banned=3,
            ban_s=600.0,
            ban_reply="554 5.7.1 Your address is blocked by Dynamic Screening",
        ),
    ),
    "exim-recipe": replace(
        EXIM_DATED, defence=Defence(refusals_before_max=3, ban_reply=TOO_MANY_FAILED)
    ),
    "cpanel": replace(
        EXIM_DATED,
        banner=CPANEL_BANNER,
        default_unknown="550 No Such User Here",
        defence=Defence(refusals_before_max=4, ban_reply=TOO_MANY_FAILED),
    ),
    "forcepoint": replace(
        GATEWAY,
        default_unknown="550 5.1.1 <{rcpt}>... User unknown",
        defence=Defence(
            half_bad_after=5,
            ban_s=3 * HOUR_S,
            ban_reply="550 5.7.1 Connection refused: directory harvest attack",
        ),
    ),
    "kerio": MailHost(
        banner="220 {name} Kerio Connect 10.0.3 ESMTP ready",
        default_unknown="550 5.1.1 Mailbox <{rcpt}> does not exist",
        defence=Defence(hour_refusals_max=10),
    ),
    "cisco": replace(
        GATEWAY,
        banner="220 {name} ESMTP",
        mail_reply="250 sender <> ok",
        default_known="250 recipient <{rcpt}> ok",
        default_unknown="550 #5.1.0 Address rejected.",
        defence=Defence(
            hour_refusals_max=25, bans_recipients=True, ban_reply="550 Too many invalid recipients"
        ),
    ),
    "trendmicro": replace(
        GATEWAY,
        default_unknown="550 5.1.1 <{rcpt}>: Recipient address rejected: "
        "User unknown in relay recipient table",
        defence=Defence(
            bad_messages_percent=20,
            ban_s=4 * HOUR_S,
            ban_reply="554 5.7.1 Service unavailable: your address is blocked",
        ),
    ),
    "exchange": replace(
        EXCHANGE,
        banner=f"220 {{name}} Microsoft ESMTP MAIL Service ready at {DATE}",
        unknown_delay_s=TARPIT_S,
        sleeps_on=True,
        defence=Defence(connections_max=20),
    ),
    "postscreen": replace(
        POSTFIX, defence=Defence(greet_wait_s=6.0, teaser="220-{name} ESMTP Postfix")
    ),
    "postfix": POSTFIX,
    "exim": replace(
        EXIM_DATED,
        connections_max=20,
        connections_reply="421 Too many concurrent SMTP connections; please try again later.",
    ),
}


def defended_host(kind: str, name: str, **changes: Any) -> MailHost:
    """A new host of this kind with an empty record; `changes` replace fields."""
    return replace(DEFENDED_HOSTS[kind], name=name, **changes)
