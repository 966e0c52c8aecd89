"""The page that verifies one address and explains the result.

Opening it spends nothing, whatever its address says; only the form verifies. What was tried
before is kept by the browser's tab alone (dashboard.js), so the service stores no address for it.
"""

import shlex
from functools import partial
from urllib.parse import quote

import msgspec
from msgspec.structs import replace
from quart import Blueprint, Response, request

from mailprobe.engine.evidence import Evidence, is_tried
from mailprobe.engine.verdict import Verdict

from ...cells.unwrapping import read_cell
from ...error_table import row_of
from ...operations.verify import VerifyEmailResult, VerifyRequest
from ...refusals import (
    BounceNotFound,
    HardCapReached,
    QuotaExhausted,
    RateLimited,
    Refusal,
)
from ...results.advice import ADVICE, advice_of, answer_of, layers_of, why_of
from .conversation import explained_turns, text_of
from .frame import (
    HOME,
    Frame,
    at_most_once,
    caller,
    form_fields,
    is_operator,
)
from .refusal_words import words_of

TITLE = "Try an address"
EMAIL_CHARACTERS_MAX = 320  # as the form's field; the parser refuses longer ones
# What the page says of each layer before an address was tried.
WILL_CHECK = (
    ("Syntax", "Is it written as an address must be?"),
    ("Throwaway list", "Does its domain give out throwaway addresses?"),
    ("Mail host", "Does the domain take mail, and where?"),
    ("Mailbox", "We ask the mail host, and show you each word."),
    ("Signals", "Typo, role name, free provider?"),
)
TESTED = 0.97  # the confidence of an acceptance where a random address was refused
# After these the form stays as it is: the address can be tried again.
KEEP_THE_FORM = (RateLimited, QuotaExhausted, HardCapReached)


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""

    @pages.get(f"{HOME}/try")
    @frame.signed_in
    async def try_page() -> Response:
        email = request.args.get("email", "")[:EMAIL_CHARACTERS_MAX]
        return await frame.page("try.html", TITLE, email=email, result=None, will_check=WILL_CHECK)

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
        return await frame.page(
            "try.html", TITLE, email=email, result=None, forgotten=email, will_check=WILL_CHECK
        )

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
                "try.html",
                TITLE,
                row_of(refusal).status,
                email=email,
                result=None,
                error=error,
                will_check=WILL_CHECK,
            )
        evidence = result.evidence
        assert isinstance(evidence, Evidence)
        judged = replace(result, suggestion=reading.suggestion or result.suggestion)
        reason = evidence.reason or "unclear"
        return await frame.page(
            "try.html", TITLE, email=email, result=result,
            why=why_of(judged, reason), advice=advice_of(judged, reason),
            see=ADVICE[reason].link if is_operator() else None, layers=layers_of(judged, reason),
            bounce=await bounce_of(frame, email, result), corrected=corrected(email, judged.suggestion),
            answer=answer_of(judged), will_check=(), **conversation_values(result, evidence),
            curl=curl_of(frame.service.links.base_url, email, query="?evidence=1"),
            json=msgspec.json.format(msgspec.json.encode(result), indent=2).decode(),
        )  # fmt: skip


class ShownBounce(msgspec.Struct, frozen=True):
    """That mail to the address came back, and what its mail host says now, if it was asked."""

    known_by: str  # by whom, and when
    is_asked: bool
    accepts: bool  # and it refuses a random address at the domain: its answer says something
    accepts_all: bool


async def bounce_of(frame: Frame, email: str, result: VerifyEmailResult) -> ShownBounce | None:
    """The bounce of the address that is kept for the account."""
    found = await frame.service.quota.bounced.among(caller(), [email])
    if not found:
        return None
    evidence = result.evidence
    is_asked = not (isinstance(evidence, Evidence) and evidence.reason == "bounced")
    accepts = is_asked and result.status == "deliverable" and result.confidence >= TESTED
    return ShownBounce(
        next(iter(found.values())), is_asked, accepts, is_asked and result.status == "catch_all"
    )


def conversation_values(result: Verdict, evidence: Evidence) -> dict[str, object]:
    """What the conversation's template shows of a result and its evidence."""
    answered = (each for each in evidence.exchanges if each.result == "answered")
    lines = evidence.conversation
    return {
        "turns": explained_turns(lines, result.email, evidence.reason, result.latency_ms),
        "conversation": text_of(lines), "evidence": evidence, "decided": answer_of(result),
        "exchange": next(answered, next(iter(evidence.exchanges), None)),
        "was_tried": is_tried(evidence),
    }  # fmt: skip


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


def curl_of(base_url: str, email: str, key: str = "$MAILPROBE_KEY", query: str = "") -> str:
    """The request as a line for a shell, by default with the key from the environment."""
    body = msgspec.json.encode({"email": email}).decode()
    return (
        f"curl -sS {shlex.quote(f'{base_url}/v1/email/verify{query}')}"
        f' -H "Authorization: Bearer {key}"'
        f" -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )
