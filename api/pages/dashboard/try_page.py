"""The page that verifies one address and explains the result.

Opening it spends nothing, whatever its address says; only the form verifies. What was tried
before is kept by the browser's tab alone (page.js), so the service stores no address for it.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote

import msgspec
from quart import Blueprint, Response, request

from mailprobe.api.cells.unwrapping import read_cell
from mailprobe.api.error_table import row_of
from mailprobe.api.pages.dashboard.frame import HOME, Frame, at_most_once, caller, form_fields
from mailprobe.api.pages.dashboard.refusal_words import words_of
from mailprobe.api.refusals import (
    BounceNotFound,
    HardCapReached,
    QuotaExhausted,
    RateLimited,
    Refusal,
)
from mailprobe.api.results.lights import LIGHT_COLOURS, WORDS
from mailprobe.api.schema import VerifyEmailResult, VerifyRequest
from mailprobe.engine.evidence import ConversationLine, Evidence
from mailprobe.engine.lights import light_of

TITLE = "Try an address"
EMAIL_CHARACTERS_MAX = 320  # as the form's field; the parser refuses longer ones
LAYERS = ("syntax", "disposable", "no_mx", "mailbox")
ACTIONS: dict[str, str] = {
    "green": "Keep it: mail will most likely arrive.",
    "yellow": "Ask the person to confirm it, or try again later.",
    "red": "Do not send mail there.",
}
BLAMES: dict[str, str] = {
    "host": "the mail host, not the address",
    "us": "this machine: its address, its name or its reputation",
    "network": "the network between this machine and the mail host",
}
TESTED = 0.97  # the confidence of an acceptance where a random address was refused
# After these the form stays as it is: the address can be tried again.
KEEP_THE_FORM = (RateLimited, QuotaExhausted, HardCapReached)


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """A command of ours, or a reply of the host with all its lines."""

    is_ours: bool
    at_ms: float
    lines: tuple[str, ...]

    @property
    def is_folded(self) -> bool:
        """Whether only the first line is shown: a positive reply, such as EHLO's extensions."""
        return not self.is_ours and len(self.lines) > 2 and self.lines[0].startswith("2")

    @property
    def goes_on(self) -> bool:
        """Whether another line of the same reply follows (RFC 5321 4.2.1)."""
        return not self.is_ours and self.lines[-1][3:4] == "-"


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""

    @pages.get(f"{HOME}/try")
    @frame.signed_in
    async def try_page() -> Response:
        email = request.args.get("email", "")[:EMAIL_CHARACTERS_MAX]
        return await frame.page("try.html", TITLE, email=email, result=None)

    @pages.post(f"{HOME}/bounces/forget")
    @frame.signed_in
    async def forget_bounce() -> Response:
        """Forget that mail to an address came back; the page Try is ready to ask its host."""
        email = (await form_fields()).get("email", "")[:EMAIL_CHARACTERS_MAX]
        try:
            await frame.perform("forget_bounce", email=quote(email, safe=""))
        except BounceNotFound:
            pass  # a second click
        except Refusal as refusal:
            return await frame.refused(refusal)
        return await frame.page("try.html", TITLE, email=email, result=None, forgotten=email)

    @pages.post(f"{HOME}/try")
    @partial(frame.signed_in, spends_units=True)
    async def try_address() -> Response:
        form = await form_fields()
        typed = form.get("email", "").strip()
        reading = read_cell(typed)
        email = reading.addresses[0] if reading.addresses else typed
        try:
            result = await explained(frame, email, asks_bounced="ask" in form)
        except Refusal as refusal:
            if not isinstance(refusal, KEEP_THE_FORM):
                return await frame.refused(refusal)
            error = " ".join(words_of(refusal, frame.service.links))
            return await frame.page(
                "try.html", TITLE, row_of(refusal).status, email=email, result=None, error=error
            )
        light = "yellow" if reading.suggestion else LIGHT_COLOURS[light_of(result)]
        evidence = result.evidence
        assert isinstance(evidence, Evidence)
        return await frame.page(
            "try.html", TITLE, email=email, result=result, light=light, evidence=evidence,
            bounce=await bounce_of(frame, email, result),
            action=ACTIONS[light], reason=WORDS.get(evidence.reason or "", ""),
            blame=BLAMES.get(evidence.blame or ""), layers=layers_of(result),
            corrected=corrected(email, reading.suggestion or result.suggestion), turns=turns_of(evidence.conversation),
            conversation=text_of(evidence.conversation),
            curl=curl_of(frame.service.links.base_url, email, query="?evidence=1"),
            json=msgspec.json.format(msgspec.json.encode(result), indent=2).decode(),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShownBounce:
    """That mail to the address came back, and what its mail host says now, if it was asked."""

    known_by: str  # by whom, and when
    is_asked: bool
    accepts: bool  # and it refuses a random address at the domain: its answer says something
    accepts_all: bool


async def bounce_of(frame: Frame, email: str, result: VerifyEmailResult) -> ShownBounce | None:
    """The bounce of the address that is kept for the account."""
    found = await frame.service.quota.bounced(caller(), [email])
    if not found:
        return None
    evidence = result.evidence
    is_asked = not (isinstance(evidence, Evidence) and evidence.reason == "bounced")
    accepts = is_asked and result.status == "deliverable" and result.confidence >= TESTED
    return ShownBounce(
        next(iter(found.values())), is_asked, accepts, is_asked and result.status == "catch_all"
    )


async def explained(frame: Frame, email: str, *, asks_bounced: bool = False) -> VerifyEmailResult:
    """Verify the address with its evidence, once for a form however often it is sent. Raises Refusal."""
    body = VerifyRequest(email=email)
    query = {"evidence": ["1"], **({"ask_bounced": ["1"]} if asks_bounced else {})}
    return await frame.result_of(
        VerifyEmailResult, "verify_email", body,
        query=query, sent=at_most_once(await form_fields(), body),
    )  # fmt: skip


def corrected(email: str, domain: str | None) -> tuple[str, str] | None:
    """The address with the domain that was probably meant, in two parts; None without one.

    A suggestion for a doubtful text is a whole address.
    """
    if not domain:
        return None
    if "@" in domain:
        return "", domain
    local_part, at, _ = email.rpartition("@")
    return local_part + at, domain


def turns_of(lines: Sequence[ConversationLine]) -> list[ShownTurn]:
    """The conversation by commands and replies."""
    turns: list[ShownTurn] = []
    for line in lines:
        is_ours = line.who == "client"
        if turns and not is_ours and turns[-1].goes_on:
            turns[-1] = replace(turns[-1], lines=(*turns[-1].lines, line.text))
        else:
            turns.append(ShownTurn(is_ours, line.at_ms, (line.text,)))
    return turns


def text_of(lines: Sequence[ConversationLine]) -> str:
    """The conversation as text: C is this service, S the mail host (as in RFC 5321)."""
    return "\n".join(f"{'C' if line.who == 'client' else 'S'}: {line.text}" for line in lines)


def curl_of(base_url: str, email: str, key: str = "$MAILPROBE_KEY", query: str = "") -> str:
    """The request as a line for a shell, by default with the key from the environment."""
    body = msgspec.json.encode({"email": email}).decode()
    return (
        f"curl -sS {shlex.quote(f'{base_url}/v1/email/verify{query}')}"
        f' -H "Authorization: Bearer {key}"'
        f" -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )


def layers_of(result: VerifyEmailResult) -> list[tuple[str, str, str]]:
    """The five layers: name, state (passed, failed, not asked), and what was found."""
    failed = result.failed_check
    reached = LAYERS.index(failed) if failed in LAYERS else len(LAYERS) - 1
    found = (
        "The address is well formed." if failed != "syntax" else "This is no address.",
        "The domain is on the list of throwaways." if result.disposable else "No throwaway.",
        f"Its mail goes to {result.mx_host}." if result.mx_host else "No mail host.",
        f"{result.status.replace('_', ' ').capitalize()}, confidence {result.confidence:.2f}.",
    )
    names = ("Syntax", "Throwaway list", "Mail host (MX)", "Mailbox")
    layers = []
    for place, (name, text) in enumerate(zip(names, found, strict=True)):
        if place > reached:
            layers.append((name, "skipped", "Not asked."))
        else:
            is_bad = place == reached and failed is not None
            layers.append((name, "failed" if is_bad else "passed", text))
    signals = [
        word
        for word, is_so in (
            ("a role address", result.role),
            ("a free provider", result.free_provider),
            ("perhaps a typing error", result.suggestion),
            ("the host accepts any name", result.catch_all),
        )
        if is_so
    ]
    words = ", ".join(signals).capitalize()
    layers.append(("Signals", "passed", f"{words}." if words else "Nothing special."))
    return layers
