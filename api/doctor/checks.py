"""The table of checks of `mailprobe doctor`: what each asks, and what to do if it fails. Pure.

The code that looks is elsewhere; every word that a person reads of a check is here, but for
what was found.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Verdict = Literal["ok", "failed", "skipped"]


class Check(Struct, frozen=True):
    """The result of one check; `advice` if it failed."""

    check: str
    question: str
    status: Verdict
    found: str
    advice: str | None = None


class CheckRow(Struct, frozen=True):
    """One row: name and question of a check, and the advice for each fault that it finds.

    The question is short, as it stands below the name; its good answer is yes.
    `subject` in the name and words in braces in the advice are filled in where it is found.
    """

    name: str
    question: str
    advice: Mapping[str, str]

    def ok(self, found: str, subject: str = "") -> Check:
        return Check(self.name.format(subject=subject), self.question, "ok", found)

    def skipped(self, found: str, subject: str = "") -> Check:
        return Check(self.name.format(subject=subject), self.question, "skipped", found)

    def failed(self, fault: str, found: str, subject: str = "", **words: str) -> Check:
        advice = self.advice[fault].format(**words)
        return Check(self.name.format(subject=subject), self.question, "failed", found, advice)


ENDPOINT = CheckRow(
    "DNS over HTTPS, {subject}",
    "Does the endpoint answer?",
    {
        "certificate": "If the endpoint is yours, give its CA in MAILPROBE_DOH_CA_FILE; "
        "if not, something on the way answers in its place.",
        "no answer": "Allow outgoing HTTPS to it, or give another endpoint in MAILPROBE_DOH_URLS.",
    },
)
PORT = CheckRow(
    "port {subject}",
    "Can mail hosts be reached?",
    {
        "refused": "The port is open, but the mail hosts refuse us: read their replies, "
        "and check whether our address is on a block list.",
        "proxies": "Check the proxies in MAILPROBE_SMTP_PROXIES, and that they may use this port.",
        "closed": "Ask the provider of this machine to open the port, "
        "or give SOCKS5 proxies elsewhere in MAILPROBE_SMTP_PROXIES, "
        "or work without it: MAILPROBE_LAYERS=1-3,5 asks no mail host.",
    },
)
SOURCE = CheckRow(
    "address",
    "Is its address here?",
    {
        "absent": "Give this machine the address, or correct it in MAILPROBE_EGRESS_FILE.",
    },
)
IDENTITY = CheckRow("our name and address", "Do name and address match?", {})
HELO = CheckRow(
    "HELO name, {subject}",
    "Does it match our address?",
    {
        "local": "Set MAILPROBE_SMTP_HELO to this machine's full public name.",
        "no name": "Set MAILPROBE_SMTP_HELO to one.",
        "no address": "Give {helo} an address record: {ours}.",
        "elsewhere": "Point {helo} to {ours}, or set MAILPROBE_SMTP_HELO to the name of {ours}.",
        "no reverse name": "Ask the owner of {ours} to name it {helo} (a PTR record).",
        "other reverse name": "Ask the owner of {ours} to name it {helo} (a PTR record), "
        "or set MAILPROBE_SMTP_HELO to {reverse}.",
    },
)
BLOCKLISTS = CheckRow(
    "blocklists",
    "Is our address unlisted?",
    {
        "listed": "Look {ours} up at the list's own site and ask for removal, or use another address.",
        "backscatter": "Look {ours} up at the list's own site and ask for removal, or use another "
        "address. Backscatter lists look for the sender <>: set MAILPROBE_SMTP_MAIL_FROM.",
    },
)
SPF = CheckRow(
    "SPF, {subject}",
    "May we send for the domain?",
    {
        "not permitted": "Add {ours} to the TXT record of {domain} that begins with v=spf1.",
        "wrong record": "Correct the TXT record of {domain} that begins with v=spf1.",
    },
)
DATABASE = CheckRow(
    "database",
    "Can the database be used?",
    {
        "no server": "Start the server, or correct MAILPROBE_DATABASE or MAILPROBE_SECRET_KEY.",
        "no folder": "Create the folder, or correct MAILPROBE_DATABASE.",
        "refused": "Put a backup in its place, or give another path in MAILPROBE_DATABASE.",
        "not writable": "Let the service's user write there, or give another path in MAILPROBE_DATABASE.",
    },
)
CLOCK = CheckRow(
    "clock",
    "Is the clock right?",
    {"wrong": "Synchronize the clock of this machine with NTP."},
)
SIGN_IN = CheckRow(
    "sign-in, {subject}",
    "Does the OpenID provider answer?",
    {
        "unusable": "Correct MAILPROBE_OIDC_ISSUER: its URL, followed by "
        "/.well-known/openid-configuration, must open on this machine and name the same issuer."
    },
)

# In the order of the report. SOURCE stands for the four after it where an egress has no address.
CHECKS = (ENDPOINT, PORT, SOURCE, IDENTITY, HELO, BLOCKLISTS, SPF, DATABASE, CLOCK, SIGN_IN)
