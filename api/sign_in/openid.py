"""OpenID Connect, as its client: where a browser is sent, and whose address comes back.

The authorization code flow (OpenID Connect Core 3.1) with PKCE (RFC 7636), a state, a nonce, and the
issuer in the answer (RFC 9207) where the provider names it. An ID token counts if a key of the
provider's has signed it by an algorithm with a public key, and issuer, audience, nonce and times are
right. An address counts if the provider says that it is verified. No token is stored or logged.
"""

import base64
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import TypeVar
from urllib.parse import quote, urlencode, urlsplit

import httpx
import msgspec
import trio
from joserfc import jwk, jwt
from joserfc.errors import JoseError

from mailprobe.engine.address import NotAnAddress, parse

from ..service import OpenIdAttempt, OpenIdFailed
from ..settings import Settings

T = TypeVar("T")
JsonObject = dict[str, object]
PublicKey = dict[str, str | list[str]]

REQUEST_S = 10.0  # for each answer of the provider, complete
ANSWER_OCTETS_MAX = 256 * 1024
KEPT_S = 3600.0  # what the provider says of itself
KEYS_AGAIN_S = 60.0  # for a token of an unknown key, the keys are fetched at most so often
LEEWAY_S = 60  # between the provider's clock and ours
# With public keys: neither "none" nor one whose key is the client's secret.
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


@dataclass(frozen=True, slots=True)
class OpenIdSettings:
    """What the provider knows us by."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)


class ProviderMetadata(msgspec.Struct, frozen=True):
    """What the provider says of itself (OpenID Connect Discovery 3)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: Sequence[str] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class TokenAnswer(msgspec.Struct, frozen=True):
    """The answer to a code (RFC 6749 5.1, OpenID Connect Core 3.1.3.3)."""

    id_token: str
    access_token: str


class TokenHeader(msgspec.Struct, frozen=True):
    """The part of a token's header (RFC 7515 4.1) that chooses the key."""

    alg: str
    kid: str | None = None


class KeySet(msgspec.Struct, frozen=True):
    """The provider's keys (RFC 7517 5)."""

    keys: list[JsonObject]


def new_attempt(page: str) -> OpenIdAttempt:
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    return OpenIdAttempt(state, nonce, verifier, page)


class OpenIdProvider:
    """The provider of MAILPROBE_OIDC_ISSUER; made by `open_openid()`."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        settings: OpenIdSettings,
        redirect_url: str,
        now: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._now = now
        self._settings = settings
        self._redirect_url = redirect_url
        self._metadata: tuple[ProviderMetadata, float] | None = (
            None  # and since when, of trio's clock
        )
        self._keys: tuple[KeySet, float] | None = None

    @property
    def name(self) -> str:
        """The provider's host, for a person."""
        return urlsplit(self._settings.issuer).netloc

    async def check(self) -> None:
        """Ask the provider what it says of itself. Raises OpenIdFailed."""
        await self._described()

    async def url_of(self, attempt: OpenIdAttempt) -> str:
        """Where the browser goes to sign in. Raises OpenIdFailed."""
        metadata = await self._described()
        challenge = base64.urlsafe_b64encode(sha256(attempt.verifier.encode()).digest())
        asked = {
            "response_type": "code",
            "scope": "openid email",
            "client_id": self._settings.client_id,
            "redirect_uri": self._redirect_url,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": challenge.decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        joint = "&" if urlsplit(metadata.authorization_endpoint).query else "?"
        return f"{metadata.authorization_endpoint}{joint}{urlencode(asked)}"

    async def email_of(self, attempt: OpenIdAttempt, answer: Mapping[str, str]) -> str:
        """The verified address of whoever signed in, by the answer's query. Raises OpenIdFailed."""
        metadata = await self._described()
        if not secrets.compare_digest(answer.get("state", "").encode(), attempt.state.encode()):
            raise OpenIdFailed("the answer has another state")
        issuer = answer.get("iss")
        if issuer is None and metadata.authorization_response_iss_parameter_supported:
            raise OpenIdFailed("the answer does not name its issuer")
        if issuer is not None and issuer != metadata.issuer:
            raise OpenIdFailed("the answer is of another issuer")
        code = answer.get("code")
        if "error" in answer or not code:
            raise OpenIdFailed(f"it answered {answer.get('error', 'without a code')[:100]!r}")
        tokens = await self._tokens(metadata, code, attempt.verifier)
        claims = await self._claims(metadata, tokens.id_token, attempt.nonce)
        if "email" not in claims and metadata.userinfo_endpoint is not None:
            claims = await self._user(metadata.userinfo_endpoint, tokens, claims)
        email = claims.get("email")
        try:
            parse(email if isinstance(email, str) else "")
        except NotAnAddress:
            raise OpenIdFailed("it names no e-mail address") from None
        verified = claims.get("email_verified")
        if verified is not True and verified != "true":  # some send a text
            raise OpenIdFailed("it does not say that the e-mail address is verified")
        return str(email)

    async def _described(self) -> ProviderMetadata:
        if self._metadata is not None and trio.current_time() - self._metadata[1] < KEPT_S:
            return self._metadata[0]
        issuer = self._settings.issuer
        url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        found = await self._answer(ProviderMetadata, url)
        if found.issuer != issuer:
            raise OpenIdFailed(
                f"it calls itself {found.issuer[:200]!r}, not as MAILPROBE_OIDC_ISSUER"
            )
        secure = urlsplit(issuer).scheme == "https"
        endpoints = [found.authorization_endpoint, found.token_endpoint, found.jwks_uri]
        for endpoint in (*endpoints, found.userinfo_endpoint or found.jwks_uri):
            if _scheme_of(endpoint) not in (("https",) if secure else ("http", "https")):
                raise OpenIdFailed("one of its addresses is not https")
        self._metadata = found, trio.current_time()
        return found

    async def _tokens(self, metadata: ProviderMetadata, code: str, verifier: str) -> TokenAnswer:
        sent = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_url,
            "code_verifier": verifier,
        }
        id, secret = self._settings.client_id, self._settings.client_secret
        headers = {}
        if "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
            pair = f"{quote(id, safe='')}:{quote(secret, safe='')}"  # RFC 6749 2.3.1
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            sent |= {"client_id": id, "client_secret": secret}
        return await self._answer(TokenAnswer, metadata.token_endpoint, headers, sent)

    async def _claims(
        self, metadata: ProviderMetadata, token: str, nonce: str
    ) -> Mapping[str, object]:
        """The claims of an ID token that is right (OpenID Connect Core 3.1.3.7)."""
        header = _header_of(token)
        if header.alg not in ALGORITHMS:
            raise OpenIdFailed(f"its ID token is signed by {header.alg[:20]!r}")
        claims = None
        for key in await self._keys_for(metadata, header):
            try:
                claims = jwt.decode(token, jwk.import_key(key), algorithms=[header.alg]).claims
                break
            except (JoseError, ValueError, KeyError):  # KeyError: a curve that nobody knows
                continue  # another key may have signed it
        if claims is None:
            raise OpenIdFailed("no key of its has signed the ID token")
        wanted = jwt.JWTClaimsRegistry(
            now=lambda: int(self._now().timestamp()),
            leeway=LEEWAY_S,
            iss={"essential": True, "value": metadata.issuer},
            aud={"essential": True, "value": self._settings.client_id},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            wanted.validate(claims)
        except (JoseError, ValueError, TypeError) as error:
            raise OpenIdFailed(f"its ID token is wrong: {error}"[:200]) from None
        is_shared = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if (is_shared or "azp" in claims) and claims.get("azp") != self._settings.client_id:
            raise OpenIdFailed("its ID token was made for another client")
        return claims

    async def _keys_for(self, metadata: ProviderMetadata, header: TokenHeader) -> list[PublicKey]:
        now = trio.current_time()
        if self._keys is not None and now - self._keys[1] < KEPT_S:
            found = _fitting(self._keys[0], header)
            if found or now - self._keys[1] < KEYS_AGAIN_S:
                return found
        self._keys = await self._answer(KeySet, metadata.jwks_uri), now
        return _fitting(self._keys[0], header)

    async def _user(
        self, url: str, tokens: TokenAnswer, claims: Mapping[str, object]
    ) -> Mapping[str, object]:
        """What the provider says of the user elsewhere (OpenID Connect Core 5.3)."""
        headers = {"Authorization": f"Bearer {tokens.access_token}"}
        found = await self._answer(JsonObject, url, headers=headers)
        if found.get("sub") != claims["sub"]:
            raise OpenIdFailed("it describes another user")
        return found

    async def _answer(
        self,
        gives: type[T],
        url: str,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
    ) -> T:
        """The provider's answer of this type, to a form or to nothing."""
        path, octets, status = urlsplit(url).path, bytearray(), 0
        method = "GET" if form is None else "POST"
        try:
            with trio.move_on_after(REQUEST_S) as asking:
                async with self._client.stream(method, url, headers=headers, data=form) as response:
                    async for part in response.aiter_bytes():
                        octets += part
                        if len(octets) > ANSWER_OCTETS_MAX:
                            asking.cancel()  # ends httpx's generators, which `raise` would leave
                    status = response.status_code
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise OpenIdFailed(f"it does not answer at {path}: {type(error).__name__}") from None
        if len(octets) > ANSWER_OCTETS_MAX:
            raise OpenIdFailed(f"its answer at {path} is too long")
        if asking.cancelled_caught:
            raise OpenIdFailed(f"it does not answer at {path} within {REQUEST_S:g} s")
        if status != 200:
            raise OpenIdFailed(f"it answers {status} at {path}")
        try:
            return msgspec.json.decode(octets, type=gives)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise OpenIdFailed(f"its answer at {path} is not as specified") from None


def _header_of(token: str) -> TokenHeader:
    head = token.partition(".")[0]
    try:
        octets = base64.urlsafe_b64decode(head + "=" * (-len(head) % 4))
        return msgspec.json.decode(octets, type=TokenHeader)
    except (ValueError, msgspec.DecodeError):
        raise OpenIdFailed("its ID token is malformed") from None


def _scheme_of(url: str) -> str:
    """The scheme of a URL; empty for what is none, and could not be in a header either."""
    if not (url.isascii() and url.isprintable()):
        return ""
    try:
        return urlsplit(url).scheme
    except ValueError:
        return ""


def _fitting(keys: KeySet, header: TokenHeader) -> list[PublicKey]:
    """The keys that may have signed a token with this header."""
    return [
        {name: value for name, value in key.items() if isinstance(value, str)}
        for key in keys.keys
        if key.get("kty") == KEY_TYPES[header.alg[:2]]
        and key.get("use", "sig") == "sig"
        and (header.kid is None or key.get("kid") == header.kid)
    ]


def openid_settings(settings: Settings) -> OpenIdSettings | None:
    """What the settings say of a provider; they have all of it or nothing."""
    issuer, id = settings.oidc_issuer, settings.oidc_client_id
    if issuer is None or id is None or settings.oidc_client_secret is None:
        return None
    return OpenIdSettings(issuer, id, settings.oidc_client_secret)


@asynccontextmanager
async def open_openid(
    settings: OpenIdSettings | None, dashboard_url: str, now: Callable[[], datetime]
) -> AsyncIterator[OpenIdProvider | None]:
    """Know the provider for the duration of the block; None where none is set."""
    if settings is None:
        yield None
        return
    limits = httpx.Limits(max_connections=4, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        limits=limits, timeout=REQUEST_S, trust_env=False, headers={"Accept-Encoding": "identity"}
    ) as client:
        redirect_url = f"{dashboard_url}/sign-in/openid/callback"
        yield OpenIdProvider(client, settings, redirect_url, now)
