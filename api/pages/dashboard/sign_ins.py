"""Signed-in browsers: a signed cookie that names a provisioning key or that of a person, and ends.

A sign-in lasts as long as its key: revoking it ends the sign-in at once, in every process,
as signing out and removing the person do. Forms carry a token made from the cookie, so that
another site cannot send them. The secret comes from the store, the same for all its processes.
"""

import hmac
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from urllib.parse import urlsplit

import msgspec
import trio
from itsdangerous import BadSignature, URLSafeTimedSerializer

from mailprobe.storage.people.people import Person, Role
from mailprobe.storage.people.sign_ins import SEEN_EVERY, NewSignIn
from mailprobe.storage.records import Actor, Caller
from mailprobe.storage.store import Store

from ...forms.origins import origin_of
from ...forms.visitors import network_of
from ...rest.auth import authenticate
from ...service import OpenIdAttempt

COOKIE = "mailprobe_session"
# Over https a browser takes this name from our own host alone, not from one beside or above it: such
# a host could let somebody work, unaware, in a sign-in of its own account (RFC 6265bis 4.1.3.2).
HOST_COOKIE = f"__Host-{COOKIE}"
SIGN_IN_S = 12 * 3600
BROWSER_COOKIE = "mailprobe_browser"  # has signed in before
BROWSER_S = 180 * 24 * 3600
WELCOME_S = 24 * 3600
NO_ADDRESS = "This is not an e-mail address. It looks like ann@example.org."
CHOICE_S = 600
ATTEMPT_S = 600  # at an OpenID provider
TRIES_EACH = 5  # sign-ins of one client in TRIES_S
INVITATIONS_S = 24 * 3600.0  # in it, TRIES_EACH invitations to one address
TRIES_ALL = 60
TRIES_S = 60.0
CLIENTS_MAX = 10_000  # remembered
SIGNER = {"digest_method": sha256, "key_derivation": "hmac"}  # of all cookies and tokens


class SignIn(msgspec.Struct, frozen=True):
    """A signed-in browser."""

    caller: Caller
    csrf: str  # what its forms carry
    id: str
    person: Person | None = None  # None: whoever has the provisioning key

    @property
    def role(self) -> Role:
        return "owner" if self.person is None else self.person.role

    @property
    def email(self) -> str:
        """What the account menu shows."""
        return self.caller.account.email if self.person is None else self.person.email

    def has_token(self, token: bytes) -> bool:
        """Whether a form carries this sign-in's token; takes the same time for any other."""
        return hmac.compare_digest(token, self.csrf.encode())


class KnownBrowser(msgspec.Struct, frozen=True):
    """By what a browser has signed in before; a stranger's by nothing."""

    account: str | None = None  # ids
    key: str | None = None  # a person's own, or a provisioning key


def cookie_name(base_url: str, name: str = COOKIE) -> str:
    """The name of a cookie of a service at this URL; by default, the sign-in's."""
    return f"__Host-{name}" if base_url.startswith("https://") else name


class SignIns:
    """Makes and reads cookies, form tokens and the link of the first start."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self._secret = store.derived_key("dashboard")
        signed = partial(URLSafeTimedSerializer, self._secret, signer_kwargs=SIGNER)
        self._cookies = signed("session")
        self._people = signed("person")  # earlier versions, which know no roles, read none of these
        self._browsers = signed("known browser")
        self._attempts = signed("openid")
        self._choices = signed("choice")
        self._welcomes = signed("welcome")

    async def begin(self, caller: Caller, browser: str, by: Actor) -> str:
        """Begin a sign-in by a provisioning key; return its cookie's value. Raises StoreUnavailable."""
        new = self._new(browser)
        await self._store.begin_sign_in(new, caller.account.id, caller.key.id, by)
        return self._cookie(self._cookies, new.id, caller)

    async def begin_of(self, person: Person, browser: str, by: Actor) -> tuple[Caller, str] | None:
        """Begin a sign-in of a person, as `begin()`; None if the person is gone."""
        new = self._new(browser)
        caller = await self._store.begin_sign_in_of(new, person.id, by)
        return None if caller is None else (caller, self._cookie(self._people, new.id, caller))

    def _new(self, browser: str) -> NewSignIn:
        until = self._now() + timedelta(seconds=SIGN_IN_S)
        return NewSignIn(secrets.token_hex(8), until, browser)

    def _cookie(self, cookies: URLSafeTimedSerializer, id: str, caller: Caller) -> str:
        return str(cookies.dumps({"a": caller.account.id, "k": caller.key.id, "n": id}))

    def browser_cookie_of(self, caller: Caller) -> str:
        """What a browser keeps beyond its sign-in: by which key of which account it was."""
        known = KnownBrowser(caller.account.id, caller.key.id)
        return str(self._browsers.dumps(msgspec.to_builtins(known)))

    def known_browser(self, cookie: str | None) -> KnownBrowser:
        """The last sign-in of this browser."""
        try:
            return msgspec.convert(
                self._browsers.loads(cookie or "", max_age=BROWSER_S), KnownBrowser
            )
        except (BadSignature, msgspec.ValidationError):
            return KnownBrowser()

    def csrf_of(self, cookie: str) -> str:
        """The token of the forms of this sign-in."""
        return hmac.digest(self._secret, f"form {cookie}".encode(), "sha256").hex()

    async def sign_in_of(self, cookie: str | None) -> SignIn | None:
        """The sign-in of a cookie; None if it has ended. Raises StoreUnavailable."""
        words = self._words(cookie) if cookie else None
        if words is None or cookie is None:
            return None
        known = await self._store.find_sign_in(words["n"], words["a"], words["k"])
        if known is None:
            return None
        now = self._now()
        if known.seen_at is not None and now - known.seen_at >= SEEN_EVERY:
            await self._store.note_sign_in(words["n"])
        return SignIn(known.caller, self.csrf_of(cookie), words["n"], known.person)

    def _words(self, cookie: str) -> Mapping[str, str] | None:
        for cookies in (self._cookies, self._people):
            with suppress(BadSignature):
                words: Mapping[str, str] = cookies.loads(cookie, max_age=SIGN_IN_S)
                return words
        return None

    async def end(self, sign_in: SignIn, by: Actor) -> None:
        """Sign out: the cookie opens nothing any more, in any process. Raises StoreUnavailable."""
        until = self._now() + timedelta(seconds=SIGN_IN_S)
        await self._store.end_sign_in(sign_in.id, until, sign_in.caller.account.id, by)

    async def caller_of_key(self, key: str) -> Caller:
        """The account that a provisioning key opens. Raises Refusal, StoreUnavailable."""
        return await authenticate(self._store, f"Bearer {key.strip()}", "provisioning")

    # sign-ins at an OpenID provider

    def attempt_cookie(self, attempt: OpenIdAttempt) -> str:
        """What the browser keeps while it is at the provider."""
        return str(self._attempts.dumps(msgspec.to_builtins(attempt)))

    async def use_attempt(self, cookie: str) -> OpenIdAttempt | None:
        """The attempt of a browser that comes back; None if it came before, or too late."""
        try:
            attempt = msgspec.convert(
                self._attempts.loads(cookie, max_age=ATTEMPT_S), OpenIdAttempt
            )
        except (BadSignature, msgspec.ValidationError):
            return None
        until = self._now() + timedelta(seconds=ATTEMPT_S)
        is_first = await self._store.use_challenge(f"openid {attempt.state}", until)
        return attempt if is_first else None

    # addresses with several accounts

    def choice_of(self, email: str) -> str:
        """What the form carries by which somebody who has proved this address chooses an account."""
        return str(self._choices.dumps({"e": email, "n": secrets.token_hex(8)}))

    async def use_choice(self, choice: str) -> str | None:
        """The address that was proved; None if the choice was made before, or is too old."""
        try:
            words = self._choices.loads(choice, max_age=CHOICE_S)
        except BadSignature:
            return None
        until = self._now() + timedelta(seconds=CHOICE_S)
        if not await self._store.use_challenge(f"choice {words['n']}", until):
            return None
        return str(words["e"])

    # the first start

    def welcome_token(self) -> str:
        """What the link of the first start carries."""
        return str(self._welcomes.dumps(secrets.token_hex(8)))

    async def is_welcome(self, token: str) -> bool:
        """Whether the link is good: it opens the first account, and no other."""
        try:
            self._welcomes.loads(token, max_age=WELCOME_S)
        except BadSignature:
            return False
        return not await self._store.accounts()


class SignInLimit:
    """Counts attempts to sign in: those of strangers by address and all together, others by key.

    A browser that has signed in before is counted apart, so that strangers, who may share the
    address of a proxy with it, cannot shut it out, nor can somebody who was removed
    (https://owasp.org/www-community/Slow_Down_Online_Guessing_Attacks_with_Device_Cookies).
    """

    def __init__(self, within_s: float = TRIES_S) -> None:
        self._within_s = within_s
        self._strangers: deque[float] = deque()
        self._each: OrderedDict[str, deque[float]] = OrderedDict()

    def try_enter(self, address: str, known: str | None = None) -> bool:
        """Count an attempt; False if there were too many. `known` is in place of the address."""
        client = f"known {known}" if known else network_of(address)
        each = self._each.setdefault(client, deque())
        self._each.move_to_end(client)
        if len(self._each) > CLIENTS_MAX:
            self._each.popitem(last=False)
        now = trio.current_time()
        counted = [(each, TRIES_EACH)]
        if not known:
            counted.append((self._strangers, TRIES_ALL))
        for times, _ in counted:
            while times and times[0] <= now - self._within_s:
                times.popleft()
        if any(len(times) >= most for times, most in counted):
            return False
        for times, _ in counted:
            times.append(now)
        return True


def is_same_site(origin: str | None, host: str | None, base_url: str) -> bool:
    """Whether a request comes from a page of this service; programs send no Origin.

    A service whose address is https has no page over http: a machine between it and a browser
    could write one.
    """
    if origin is None:
        return True
    own = urlsplit(origin_of(base_url))
    schemes = ("https",) if own.scheme == "https" else ("http", "https")
    return origin in {
        f"{scheme}://{name}" for scheme in schemes for name in (host or own.netloc, own.netloc)
    }
