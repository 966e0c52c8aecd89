"""An OpenID provider that can be made to lie, behind httpx without sockets.

tests/peers has one that is not ours.
"""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx
from joserfc import jwk, jwt
from joserfc.jwk import RSAKey
from msgspec.structs import replace

from mailprobe.api.serve import create_app
from mailprobe.api.sign_in.openid import OpenIdProvider, OpenIdSettings
from tests.api.pages.people.visitor import HOME, PeopleShop, Visitor, open_people_shop
from tests.api.service_fixture import HttpAnswer

ISSUER = "https://login.test/realm"
CLIENT = OpenIdSettings(ISSUER, "mailprobe", "s3cret of the client")
REDIRECT = f"https://api.test{HOME}/sign-in/openid/callback"
OPENID = "sign-in/openid"


def new_key(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


KEY, OTHER_KEY = new_key("one"), new_key("two")


@dataclass
class StandIn:
    """Answers as a provider does; what it says is changed by its fields."""

    now: Callable[[], Any]
    claims: dict[str, Any] = field(default_factory=dict)  # in place of the right ones
    left_out: set[str] = field(default_factory=set)
    header: dict[str, Any] = field(default_factory=lambda: {"alg": "RS256", "kid": "one"})
    signed_by: Any = field(default_factory=lambda: KEY)
    keys: tuple[RSAKey, ...] = (KEY,)
    metadata: dict[str, Any] = field(default_factory=dict)
    user: dict[str, Any] = field(default_factory=dict)
    token: str | None = None  # in place of a signed one
    answers: dict[str, httpx.Response] = field(default_factory=dict)  # by path, in place of its own
    asked: list[str] = field(default_factory=list)
    authorization: dict[str, str] = field(default_factory=dict)  # what the browser brought

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked.append(path)
        if path in self.answers:
            return self.answers[path]
        match path:
            case "/realm/.well-known/openid-configuration":
                return httpx.Response(200, json=self.described())
            case "/keys":
                return httpx.Response(
                    200, json={"keys": [key.as_dict(private=False) for key in self.keys]}
                )
            case "/token":
                return self._tokens(request)
            case "/user":
                assert request.headers["authorization"] == "Bearer access"
                return httpx.Response(200, json=self.user)
        return httpx.Response(404)

    def described(self) -> dict[str, Any]:
        return {
            "issuer": ISSUER,
            "authorization_endpoint": "https://login.test/authorize",
            "token_endpoint": "https://login.test/token",
            "jwks_uri": "https://login.test/keys",
            "userinfo_endpoint": "https://login.test/user",
            **self.metadata,
        }

    def _tokens(self, request: httpx.Request) -> httpx.Response:
        sent = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
        pair = base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode()
        assert pair == "mailprobe:s3cret%20of%20the%20client"
        assert sent["redirect_uri"] == REDIRECT
        digest = sha256(sent["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if (sent["code"], challenge) != ("good", self.authorization.get("code_challenge")):
            return httpx.Response(400, json={"error": "invalid_grant"})
        token = self.token or jwt.encode(
            self.header, self._claims(), self.signed_by, algorithms=[self.header["alg"]]
        )
        return httpx.Response(200, json={"id_token": token, "access_token": "access"})

    def _claims(self) -> dict[str, Any]:
        at = int(self.now().timestamp())
        right = {
            "iss": ISSUER, "aud": "mailprobe", "sub": "u1", "iat": at, "exp": at + 300,
            "nonce": self.authorization["nonce"], "email": "ann@shop.test", "email_verified": True,
        }  # fmt: skip
        found = {**right, **self.claims}
        return {name: value for name, value in found.items() if name not in self.left_out}

    def sign_in(self, location: str) -> dict[str, str]:
        """Let the browser's person sign in; what it brings back."""
        url = urlsplit(location)
        assert f"{url.scheme}://{url.netloc}{url.path}" == "https://login.test/authorize"
        self.authorization = dict(parse_qsl(url.query))
        assert self.authorization["redirect_uri"] == REDIRECT
        assert self.authorization["code_challenge_method"] == "S256"
        return {"code": "good", "state": self.authorization["state"]}


@dataclass
class OpenIdShop:
    """The service with such a provider."""

    people: PeopleShop
    provider: StandIn

    async def leave(self, visitor: Visitor, next: str = "") -> dict[str, str]:
        """Go to the provider and sign in there; what the browser brings back."""
        got = await visitor.get(f"{OPENID}?next={next}")
        assert got.status == 303
        return self.provider.sign_in(got.headers["location"])

    async def enter(self, visitor: Visitor, **changed: str) -> HttpAnswer:
        """Sign in there and come back."""
        return await self.come_back(visitor, {**await self.leave(visitor), **changed})

    async def come_back(self, visitor: Visitor, answer: dict[str, str]) -> HttpAnswer:
        return await visitor.get(f"{OPENID}/callback?{httpx.QueryParams(answer)}")


@asynccontextmanager
async def open_openid_shop() -> AsyncIterator[OpenIdShop]:
    """Open a service whose people sign in at a provider."""
    async with open_people_shop() as people:
        provider = StandIn(people.shop.clock)
        async with httpx.AsyncClient(transport=httpx.MockTransport(provider)) as client:
            openid = OpenIdProvider(client, CLIENT, REDIRECT, people.shop.clock)
            people.shop.service = replace(people.shop.service, openid=openid)
            people.shop.app = create_app(people.shop.service)
            await people.person("member", "ann@shop.test")
            yield OpenIdShop(people, provider)


SECRET_KEY = jwk.import_key(CLIENT.client_secret, "oct")
