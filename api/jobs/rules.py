"""Whom a callback may go to, how it is signed, and when it is tried again.

A webhook is an https URL (RFC 3986) of a host that has a name. The name is read as
browsers read it (UTS 46, then IDNA 2008) and judged afterwards, so that what only
becomes an address or `localhost` by that reading is found out too. This keeps
mistakes out; what a name leads to is checked at every delivery (mailprobe.api.jobs.delivery).
Pure: no clock, no chance, no network.
"""

import base64
import hmac
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Literal
from unicodedata import category
from urllib.parse import quote

import idna

SCHEME = "https://"
URL_CHARACTERS_MAX = 2048
HOST_OCTETS_MAX = 253  # RFC 1035 2.3.4, as text and without a dot at the end
USER_AGENT = f"mailprobe/{version('mailprobe')}"
JITTER = 0.2  # of a wait: jobs that failed together do not all come again together
RETRY_AFTER_MAX_S = 24 * 3600.0  # whoever asks for longer is asked again all the same

_AUTHORITY = re.compile(r"[^/?#]*")
_PORT = re.compile(r"[0-9]{1,5}")
# The underscore is forbidden (RFC 1123 2.1) and exists, as it does in the names of mail hosts.
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# Line ends, tabs and NUL; half characters; spaces of every width
_NOWHERE = frozenset({"Cc", "Cs", "Zs", "Zl", "Zp"})
# What RFC 3986 lets stand in a path or a query, and the brackets, which everybody sends
# as they are. Anything else goes in UTF-8, percent-encoded (RFC 3987 3.1).
_SENT_AS_IT_IS = "!$%&'()*+,-./:;=?@[]_~"


class NotAWebhook(ValueError):
    """This URL is none to call back; `why` says it in words for a person, and quotes nothing."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """Where to post. What may hold the caller's secrets is not printed."""

    url: str = field(repr=False)  # as it was given
    host: str  # lower case, A-labels, no dot at the end
    port: int
    request_target: str = field(repr=False)  # path and query as they are sent (RFC 9112 3.2.1)

    @property
    def authority(self) -> str:
        """What the Host header says (RFC 9110 7.2)."""
        return self.host if self.port == 443 else f"{self.host}:{self.port}"


def check_webhook(url: str) -> WebhookTarget:
    """Read a URL to call back, or raise NotAWebhook and nothing else.

    The scheme is taken in lower case alone, for that is the rule that is published.
    A fragment is refused: it would never be sent, and whoever wrote it meant something.
    """
    if not url.startswith(SCHEME):
        raise NotAWebhook(f"it must begin with {SCHEME}, in lower case")
    if len(url) > URL_CHARACTERS_MAX:
        raise NotAWebhook(f"it is longer than {URL_CHARACTERS_MAX} characters")
    if any(each == "\\" or category(each) in _NOWHERE for each in url):
        raise NotAWebhook("it holds a space, a backslash or a control character")
    if "#" in url:
        raise NotAWebhook("it has a fragment (#), which would never be sent")
    found = _AUTHORITY.match(url, len(SCHEME))
    assert found is not None  # it matches nothing too
    host, port = _read_authority(found[0])
    rest = url[found.end() :]
    path = rest if rest.startswith("/") else f"/{rest}"
    return WebhookTarget(url, host, port, quote(path, safe=_SENT_AS_IT_IS))


def _read_authority(text: str) -> tuple[str, int]:
    if "@" in text:
        raise NotAWebhook("it names a user")
    if "[" in text or "]" in text:
        raise NotAWebhook(_AN_ADDRESS)
    host, colon, port = text.partition(":")
    name = _read_host(host)
    if not colon:
        return name, 443
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= 65535:
        raise NotAWebhook("its port is no number from 1 to 65535")
    return name, int(port)


_AN_ADDRESS = "it names an IP address; give the host's name"
_NO_NAME = "its host is no domain name"


@dataclass(frozen=True, slots=True)
class _HostLabel:
    sent: str  # the A-label, or plain ASCII
    shown: str  # the U-label, or plain ASCII


def _read_host(text: str) -> str:
    """The name as DNS knows it; one dot at its end, which says that it is whole, is taken off."""
    if len(text) > HOST_OCTETS_MAX + 1:  # of characters too: no work beyond it
        raise NotAWebhook("its host name is too long")
    labels = [_read_label(label) for label in _fold(text).removesuffix(".").split(".")]
    top = labels[-1]
    # Whatever ends in a number is an IPv4 address to somebody's inet_aton (WHATWG URL 3.5).
    if top.shown.isdigit() or top.sent.startswith("0x"):
        raise NotAWebhook(_AN_ADDRESS)
    if top.sent in ("localhost", "local"):  # RFC 6761 6.3, RFC 6762 3
        raise NotAWebhook("its host is not on the public Internet")
    if len(labels) < 2:
        raise NotAWebhook("its host name has no dot")
    host = ".".join(label.sent for label in labels)
    if len(host) > HOST_OCTETS_MAX:
        raise NotAWebhook("its host name is too long")
    return host


def _fold(host: str) -> str:
    """Lower case; in other scripts also what UTS 46 reads it as, full-width dots included."""
    if host.isascii():
        return host.lower()
    try:
        return idna.uts46_remap(host, std3_rules=False, transitional=False)
    except UnicodeError:
        raise NotAWebhook(_NO_NAME) from None


def _read_label(label: str) -> _HostLabel:
    """A label checked, and in both its forms; a percent sign is in none of them."""
    if label.isascii() and not label.startswith("xn--"):
        if not _LABEL.fullmatch(label):
            raise NotAWebhook(_NO_NAME)
        return _HostLabel(label, label)
    try:
        shown = idna.ulabel(label)
        sent = idna.alabel(shown).decode("ascii")
    except UnicodeError:
        raise NotAWebhook(_NO_NAME) from None
    if label not in (shown, sent):  # an xn-- that another spelling stands for (RFC 5891 5.3)
        raise NotAWebhook(_NO_NAME)
    return _HostLabel(sent, shown)


# -- signing ----------------------------------------------------------------------------------


def callback_headers(
    job_id: str, payload: bytes, secret: str | None, at: datetime
) -> dict[str, str]:
    """The headers of a try that begins at `at` (aware), signed where there is a secret.

    X-Service-Signature covers the payload, keyed with the secret as it is.
    webhook-signature is that of Standard Webhooks, and covers id and time as well.
    """
    seconds = str(int(at.timestamp()))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        "webhook-id": job_id,
        "webhook-timestamp": seconds,
    }
    if not secret:
        return headers
    literal = hmac.digest(secret.encode(), payload, "sha256").hex()
    signed = f"{job_id}.{seconds}.".encode() + payload
    standard = base64.b64encode(hmac.digest(_standard_key(secret), signed, "sha256")).decode()
    return headers | {
        "X-Service-Signature": f"sha256={literal}",
        "webhook-signature": f"v1,{standard}",
    }


def _standard_key(secret: str) -> bytes:
    """What `whsec_` stands before, decoded; of any other secret its own octets."""
    if secret.startswith("whsec_"):
        with suppress(ValueError):  # no base64, or not ASCII: then it is a secret like others
            key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
            return key or secret.encode()  # never the empty key, which everybody knows
    return secret.encode()


# -- trying again -----------------------------------------------------------------------------


def verdict_on(
    status: int | None,
    *,
    tries: int,
    retry_s: Sequence[float],
    jitter: float,
    retry_after_s: float | None = None,
) -> tuple[Literal["done", "failed", "delivering"], float | None]:
    """What becomes of a job after its `tries`-th try, and how long the next one waits.

    `status` is None where there was no answer. 2xx is done, 410 (Gone) is failed;
    all else is tried again, redirects too, as long as the plan has waits left.
    """
    if status is not None and 200 <= status < 300:
        return "done", None
    if status == 410:
        return "failed", None
    asked_s = retry_after_s if status in (429, 503) else None
    wait_s = next_try(tries, retry_s, jitter, asked_s)
    return ("failed" if wait_s is None else "delivering"), wait_s


def next_try(
    tries: int, retry_s: Sequence[float], jitter: float, retry_after_s: float | None
) -> float | None:
    """Seconds until the next try, after `tries` (from 1); None where there is to be none.

    `jitter`, -1 to 1, is chance. What the receiver asked for is waited out, a day at most.
    """
    if tries > len(retry_s):
        return None
    wait_s = retry_s[tries - 1] * (1 + JITTER * jitter)
    return max(wait_s, min(retry_after_s or 0.0, RETRY_AFTER_MAX_S))


_SECONDS = re.compile(r"[0-9]+")
DATE_CHARACTERS_MAX = 40  # the longest of RFC 9110 5.6.7 has 33


def read_retry_after(text: str, now: datetime) -> float | None:
    """The seconds that a Retry-After asks for (RFC 9110 10.2.3); None for what says nothing."""
    if len(text) > DATE_CHARACTERS_MAX:
        return None
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        at = parsedate_to_datetime(text)
        # asctime's form has no zone, and RFC 9110 5.6.7 means UTC by it
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return max((at - now).total_seconds(), 0.0)
    except (ValueError, OverflowError):
        return None
