"""Signing in and out: by a link that is mailed, at an OpenID provider, or by a provisioning key.

A link is opened by a button: programs that look at links in mails would use it up. What it carries
goes from the address into a cookie at once, so that no page names it to another. It is good in the
browser that asked for it alone, which a cookie knows; so nobody can send somebody a link that leads
into a foreign account, or use one that was forwarded. Answers are the same for known and unknown
addresses. A provisioning key signs in where no mail is set up, or as long as no owner has come.
"""

import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from math import ceil

from quart import Blueprint, Response, g, request
from werkzeug.exceptions import NotFound

from mailprobe.engine.address import NotAnAddress, parse
from mailprobe.storage.people.links import LINKS_KEPT, NewLink
from mailprobe.storage.people.people import Person

from ....forms.visitors import network_of
from ....http.received_request import admission_of
from ....keys import key_hash
from ....refusals import Refusal
from ....service import OpenIdFailed, OpenIdService
from ....sign_in.openid import new_attempt
from ... import documents
from ..frame import (
    HOME,
    SIGN_IN,
    Frame,
    away,
    caller,
    form_fields,
)
from ..keys_page import KEYS, NO_KEYS, KeyCookie
from ..roles import ACCOUNTS
from ..sign_ins import ATTEMPT_S, BROWSER_COOKIE, NO_ADDRESS, KnownBrowser, SignIn
from ..start_page import START

log = logging.getLogger("mailprobe.sign_in")

LINK = f"{SIGN_IN}/link"
MAIL = f"{SIGN_IN}/mail"
ACCOUNT = f"{SIGN_IN}/account"
OPENID = f"{SIGN_IN}/openid"
ASKED_COOKIE = "mailprobe_asked"  # of the browser that asks for a link
LINK_COOKIE = "mailprobe_link"  # what the link of a mail carries, until its button is pressed
OPENID_COOKIE = "mailprobe_openid"  # of a browser that is at the provider
LINK_S = int(LINKS_KEPT.total_seconds())
TOKEN_OCTETS = 32
SIGN_IN_ENDED = "Your session has ended, and nothing more was done. Sign in again."
NO_KEY = "That is not an active provisioning key (sk_mgmt_…)."
ONLY_PEOPLE = "This account has people. Sign in with your e-mail address."
ACCOUNTS_SHOWN = 20  # to choose from


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""
    _register_key(pages, frame)
    _register_link_requests(pages, frame)
    _register_links(pages, frame)
    _register_openid(pages, frame)
    _register_accounts(pages, frame)


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_OCTETS)


def page_after(values: Mapping[str, str]) -> str:
    """The path to go to after the sign-in: a page of this service, whatever the form has."""
    wanted = values.get("next", HOME)
    is_ours = re.fullmatch(r"/(dashboard|docs)(/[A-Za-z0-9-]+)*", wanted, re.ASCII)
    return wanted if is_ours and not wanted.startswith(SIGN_IN) else HOME


async def refused_attempt(frame: Frame) -> Response | None:
    """Count an attempt of this client; the page that refuses it, or None."""
    admission_of(request.scope).admitted()
    if request.method == "POST" and not frame.is_same_site():
        return await frame.error(403, "This form comes from another site.", "Sign in here.")
    if not frame.sign_in_limit.try_enter(frame.visitor(), known_browser(frame).key):
        return await frame.error(
            429, "There were too many attempts to sign in.", "Wait a minute, then try again."
        )
    return None


def known_browser(frame: Frame) -> KnownBrowser:
    """The last sign-in of this browser."""
    return frame.sign_ins.known_browser(request.cookies.get(BROWSER_COOKIE))


async def entered(frame: Frame, people: Sequence[Person], page: str) -> Response:
    """Sign in as this person, or let somebody with several accounts choose."""
    if len(people) == 1:
        response = await frame.begin_of(people[0], away(page))
        if response is not None:
            return _without(frame, response, ASKED_COOKIE, LINK_COOKIE, OPENID_COOKIE)
    if len(people) < 2:
        return await frame.error(
            403, "Nobody has invited this address.", "Ask an owner of the account to invite you."
        )
    accounts = [
        (person, await frame.service.store.account(person.account_id))
        for person in people[:ACCOUNTS_SHOWN]
    ]
    choice = frame.sign_ins.choice_of(people[0].email)
    return await frame.page(
        "sign_in_account.html", "Choose an account", accounts=accounts, choice=choice, next=page
    )


def _without(frame: Frame, response: Response, *names: str) -> Response:
    for name in map(frame.host_cookie, names):
        response.delete_cookie(name, path="/", httponly=True, samesite="Lax", secure=frame.is_https)
    return response


async def _sign_in_page(
    frame: Frame, status: int = 200, *, next: str, error: str | None = None, email: str = ""
) -> Response:
    return await frame.page(
        "sign_in.html", "Sign in", status, next=next, error=error, email=email,
        mails=frame.service.sign_in_mails is not None,
        provider=frame.service.openid.name if frame.service.openid else "",
    )  # fmt: skip


def _register_key(pages: Blueprint, frame: Frame) -> None:
    store = frame.service.store

    @pages.get(SIGN_IN)
    async def sign_in() -> Response:
        error = SIGN_IN_ENDED if "ended" in request.args else None
        return await _sign_in_page(frame, next=page_after(request.args), error=error)

    @pages.post(SIGN_IN)
    async def enter() -> Response:
        if (refused := await refused_attempt(frame)) is not None:
            return refused
        form = await form_fields()
        try:
            known = await frame.sign_ins.caller_of_key(form.get("key", ""))
        except Refusal:
            tried = key_hash(form.get("key", "").strip())
            account_id = known_browser(frame).account
            await store.record_failed_sign_in(tried, account_id, frame.actor())
            return await _sign_in_page(frame, 401, next=page_after(form), error=NO_KEY)
        if frame.service.sign_in_mails and await store.has_active_owner(known.account.id):
            return await _sign_in_page(frame, 403, next=page_after(form), error=ONLY_PEOPLE)
        frame.service.key_uses.note(known.key, frame.service.now())
        return await frame.begin(known, away(page_after(form)))

    @pages.post(f"{HOME}/sign-out")
    @frame.signed_in
    async def sign_out() -> Response:
        sign_in: SignIn = g.sign_in
        await frame.sign_ins.end(sign_in, frame.actor(sign_in.caller))
        response = away(SIGN_IN)
        response.delete_cookie(
            frame.cookie, path="/", httponly=True, samesite="Lax", secure=frame.is_https
        )
        for path in (START, KEYS, ACCOUNTS, documents.ROOT):
            cookie = KeyCookie(frame.service.store, path, frame.is_https)
            cookie.put(response, caller(), NO_KEYS)
        return response


def _register_link_requests(pages: Blueprint, frame: Frame) -> None:
    asked_cookie = frame.host_cookie(ASKED_COOKIE)

    @pages.post(MAIL)
    async def send_link() -> Response:
        if (refused := await refused_attempt(frame)) is not None:
            return refused
        form = await form_fields()
        mails, page = frame.service.sign_in_mails, page_after(form)
        if mails is None:
            return await frame.error(404, "This service sends no mails.", "Sign in with a key.")
        email = form.get("email", "").strip()
        try:
            parse(email)
        except NotAnAddress:
            return await _sign_in_page(frame, 400, next=page, error=NO_ADDRESS, email=email)
        browser, token = request.cookies.get(asked_cookie) or new_token(), new_token()
        client, known = network_of(frame.visitor()), known_browser(frame).key
        link = NewLink(key_hash(token), email, key_hash(browser), client, page, known)
        asked = await frame.service.store.request_link(link)
        if asked.to is not None:
            mails.send_link(asked.to, token, asked.until)
        response = await frame.page(
            "sign_in_sent.html", "Check your mail", email=email, next=page, asked=asked,
            again_s=ceil((asked.again_at - frame.service.now()).total_seconds()),
        )  # fmt: skip
        frame.set_cookie(response, asked_cookie, browser, LINK_S, "/")
        return response


def _register_links(pages: Blueprint, frame: Frame) -> None:
    store = frame.service.store
    asked_cookie, link_cookie = frame.host_cookie(ASKED_COOKIE), frame.host_cookie(LINK_COOKIE)

    @pages.get(LINK)
    async def link() -> Response:
        """The page of the button; a GET, which programs send too, uses nothing up."""
        admission_of(request.scope).admitted()
        token = request.args.get("token")
        if token is not None:
            response = away(LINK)
            if re.fullmatch(r"[A-Za-z0-9_-]{1,100}", token, re.ASCII):
                frame.set_cookie(response, link_cookie, token, LINK_S, "/")
            return response
        found = await store.link(*_proof())
        if found is None:
            return await no_link()
        return await frame.page("sign_in_link.html", "Sign in", email=found.email)

    @pages.post(LINK)
    async def use() -> Response:
        if (refused := await refused_attempt(frame)) is not None:
            return refused
        form = await form_fields()
        found = await store.use_link(*_proof())
        # Another page may have put another link into the cookie since the button was shown.
        if found is None or form.get("email") != found.email:
            return await no_link()
        people = await store.people_with(found.email)
        if found.person_id is not None:
            people = [each for each in people if each.id == found.person_id]
        return await entered(frame, people, found.page)

    def _proof() -> tuple[str, str]:
        """The hashes of what the link carries and of what knows the browser."""
        token, browser = (request.cookies.get(name, "") for name in (link_cookie, asked_cookie))
        return key_hash(token), key_hash(browser)

    async def no_link() -> Response:
        return await frame.error(
            403,
            "This link does not work here, or not any more.",
            "It works once, for 15 minutes, in the browser that asked for it. Ask for another one.",
        )


def _register_openid(pages: Blueprint, frame: Frame) -> None:
    """The way to the provider and back.

    A link leads there: a form that is led elsewhere is refused by its page's policy.
    """
    cookie = frame.host_cookie(OPENID_COOKIE)

    @pages.get(OPENID)
    async def leave() -> Response:
        if frame.service.openid is None:
            raise NotFound
        if (refused := await refused_attempt(frame)) is not None:
            return refused
        attempt = new_attempt(page_after(request.args))
        try:
            response = away(await frame.service.openid.url_of(attempt))
        except OpenIdFailed as error:
            return await no_sign_in(frame.service.openid, error)
        value = frame.sign_ins.attempt_cookie(attempt)
        frame.set_cookie(response, cookie, value, ATTEMPT_S, "/")
        return response

    @pages.get(f"{OPENID}/callback")
    async def come_back() -> Response:
        """It was counted as an attempt when it left: without the cookie of then it ends at once."""
        if frame.service.openid is None:
            raise NotFound
        admission_of(request.scope).admitted()
        attempt = await frame.sign_ins.use_attempt(request.cookies.get(cookie, ""))
        if attempt is None:
            return await frame.error(403, "This sign-in is over.", "Begin again.")
        try:
            email = await frame.service.openid.email_of(attempt, request.args)
        except OpenIdFailed as error:
            return await no_sign_in(frame.service.openid, error)
        people = await frame.service.store.people_with(email)
        return await entered(frame, people, attempt.page)

    async def no_sign_in(provider: OpenIdService, error: OpenIdFailed) -> Response:
        log.warning("sign-in failed: provider=%s error=%s", provider.name, error)
        return await frame.error(
            403,
            f"The sign-in at {provider.name} did not work.",
            "Begin again. If it goes on, the operator of this service finds the reason in its log.",
        )


def _register_accounts(pages: Blueprint, frame: Frame) -> None:
    @pages.post(ACCOUNT)
    async def choose() -> Response:
        """One of the accounts of an address that has proved itself."""
        if (refused := await refused_attempt(frame)) is not None:
            return refused
        form = await form_fields()
        email = await frame.sign_ins.use_choice(form.get("choice", ""))
        people = [] if email is None else await frame.service.store.people_with(email)
        chosen = [each for each in people if each.id == form.get("person")]
        return await entered(frame, chosen, page_after(form))
