"""The rules of callbacks: which URLs are allowed, how a callback is signed, when it is retried.

A webhook is an https URL (RFC 3986) whose host is a name. The name is normalised as
browsers do it (UTS 46, then IDNA 2008) and checked afterwards, so that names that
normalise to an address or to `localhost` are found too. This prevents mistakes; the
host's addresses are checked at every delivery (mailprobe.api.jobs.delivery).
Pure: no clock, no randomness, no network.
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
from typing import Annotated, Literal
from unicodedata import category
from urllib.parse import quote

import idna
import msgspec

from mailprobe.engine import Verdict

from ..outbox.backoff import Backoff
from ..schema import says

SCHEME = "https://"
URL_CHARACTERS_MAX = 2048
HOST_OCTETS_MAX = 253  # RFC 1035 2.3.4, as text without the trailing dot
USER_AGENT = f"mailprobe/{version('mailprobe')}"
JITTER = 0.2  # fraction of a wait, so that jobs that failed together are not retried together
RETRY_AFTER_MAX_S = 24 * 3600.0  # a longer Retry-After is cut to this

_AUTHORITY = re.compile(r"[^/?#]*")
_PORT = re.compile(r"[0-9]{1,5}")
# Underscores are forbidden (RFC 1123 2.1) but in use, as in the names of mail hosts.
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# control characters, surrogates, and all kinds of spaces
_NOWHERE = frozenset({"Cc", "Cs", "Zs", "Zl", "Zp"})
# What RFC 3986 allows in a path or a query, plus brackets, which clients send unencoded.
# Anything else is sent as percent-encoded UTF-8 (RFC 3987 3.1).
_SENT_AS_IT_IS = "!$%&'()*+,-./:;=?@[]_~"


class VerifyEmailCallback(Verdict, frozen=True, kw_only=True):
    """The body of a callback: the result and the id of its job."""

    job_id: Annotated[str, says("The job_id of the 202.")]


class NotAWebhook(ValueError):
    """The URL is not a valid webhook; the text says why and quotes nothing of the URL."""


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """Where to post. Fields that may contain the customer's secrets are not in its repr."""

    url: str = field(repr=False)  # as given
    host: str  # lower case, A-labels, no trailing dot
    port: int
    request_target: str = field(repr=False)  # path and query as sent (RFC 9112 3.2.1)

    @property
    def authority(self) -> str:
        """The value of the Host header (RFC 9110 7.2)."""
        return self.host if self.port == 443 else f"{self.host}:{self.port}"


def check_webhook(url: str) -> WebhookTarget:
    """Parse a webhook URL; raises NotAWebhook and nothing else.

    The scheme must be lower case, as published. A fragment is refused, because it would
    never be sent although its author may rely on it.
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
    assert found is not None  # the pattern matches the empty string too
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
        raise NotAWebhook("its port is not a number from 1 to 65535")
    return name, int(port)


_AN_ADDRESS = "it names an IP address; give the host's name"
_NO_NAME = "its host is not a domain name"


class _HostLabel(msgspec.Struct, frozen=True):
    sent: str  # the A-label, or plain ASCII
    shown: str  # the U-label, or plain ASCII


def _read_host(text: str) -> str:
    """Return the name as DNS has it, without a trailing dot. Raises NotAWebhook."""
    if len(text) > HOST_OCTETS_MAX + 1:  # bounds the work on the characters below
        raise NotAWebhook("its host name is too long")
    labels = [_read_label(label) for label in _fold(text).removesuffix(".").split(".")]
    top = labels[-1]
    # Some inet_aton reads any name that ends in a number as an IPv4 address (WHATWG URL 3.5).
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
    """Return the host in lower case, or mapped by UTS 46 (also full-width dots) if not ASCII."""
    if host.isascii():
        return host.lower()
    try:
        return idna.uts46_remap(host, std3_rules=False, transitional=False)
    except UnicodeError:
        raise NotAWebhook(_NO_NAME) from None


def _read_label(label: str) -> _HostLabel:
    """Check a label and return both its forms; neither can contain a percent sign."""
    if label.isascii() and not label.startswith("xn--"):
        if not _LABEL.fullmatch(label):
            raise NotAWebhook(_NO_NAME)
        return _HostLabel(label, label)
    try:
        shown = idna.ulabel(label)
        sent = idna.alabel(shown).decode("ascii")
    except UnicodeError:
        raise NotAWebhook(_NO_NAME) from None
    if label not in (shown, sent):  # an xn-- label that is not in canonical form (RFC 5891 5.3)
        raise NotAWebhook(_NO_NAME)
    return _HostLabel(sent, shown)


# -- signing ----------------------------------------------------------------------------------


def child_of(trace: str | None, span_id: int) -> str:
    """A span of its own in a trace; empty without a trace. `span_id` is not 0.

    Both are as trace_of() writes them; rows of earlier versions lack the span.
    """
    if not trace:
        return ""
    trace_id, *_, flags = trace.split("-")
    return f"{trace_id}-{span_id:016x}-{flags}"


def traceparent_of(trace: str) -> dict[str, str]:
    """The header that names a span (W3C Trace Context, version 00); none without one."""
    return {"traceparent": f"00-{trace}"} if trace else {}


def callback_headers(
    job_id: str, payload: bytes, secret: str | None, at: datetime
) -> dict[str, str]:
    """Return the headers of an attempt that begins at `at` (aware), signed if there is a secret.

    X-Service-Signature covers the payload, keyed with the secret's own octets.
    webhook-signature follows Standard Webhooks and also covers id and time.
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
    """Return the decoded base64 after `whsec_`; of any other secret its own octets."""
    if secret.startswith("whsec_"):
        with suppress(ValueError):  # not base64, or not ASCII: treated as any other secret
            key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
            return key or secret.encode()  # never the empty key, which anyone could use
    return secret.encode()


# -- retries ----------------------------------------------------------------------------------


def callback_backoff(retry_s: Sequence[float]) -> Backoff:
    """Return the rule of a callback's retries, which wait `retry_s` one after another."""
    return Backoff(
        tuple(retry_s),
        ends=True,
        spread=(1 - JITTER, 1 + JITTER),
        retry_after_s_max=RETRY_AFTER_MAX_S,
    )


def verdict_on(
    status: int | None,
    *,
    tries: int,
    backoff: Backoff,
    chance: float,
    retry_after_s: float | None = None,
) -> tuple[Literal["done", "failed", "delivering"], float | None]:
    """Return a job's state after its `tries`-th attempt, and the seconds until the next or None.

    `status` is None without a response. 2xx is done, 410 (Gone) is failed; anything
    else, also a redirect, is retried while the plan has pauses left.
    """
    if status is not None and 200 <= status < 300:
        return "done", None
    if status == 410:
        return "failed", None
    asked_s = retry_after_s if status in (429, 503) else None
    wait_s = backoff.pause_s(tries, chance=chance, retry_after_s=asked_s)
    return ("failed" if wait_s is None else "delivering"), wait_s


_SECONDS = re.compile(r"[0-9]+")
DATE_CHARACTERS_MAX = 40  # the longest form of RFC 9110 5.6.7 has 33


def read_retry_after(text: str, now: datetime) -> float | None:
    """Return the seconds of a Retry-After (RFC 9110 10.2.3); None if it is invalid."""
    if len(text) > DATE_CHARACTERS_MAX:
        return None
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        at = parsedate_to_datetime(text)
        # the asctime form has no zone; RFC 9110 5.6.7 defines it as UTC
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return max((at - now).total_seconds(), 0.0)
    except (ValueError, OverflowError):
        return None


def payload_of(verdict: Verdict, job_id: str) -> bytes:
    """Return the body of a job's callback."""
    return msgspec.json.encode(
        VerifyEmailCallback(**msgspec.structs.asdict(verdict), job_id=job_id)
    )
