"""The border to Stripe's SDK: what we ask it for, and what a failure means.

The SDK's asynchronous client is handed an HTTP client of ours, as its documentation
provides: httpx, on trio. Its own one, on httpx too, takes every bug for a lost
connection, and sends bodies in a way that httpx is about to forget. The SDK makes no
retries, for only we know what may be sent twice.

No key and no address of a portal is in what is logged or raised here.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import msgspec
import stripe as sdk
import trio

from mailprobe.api.billing.rules import (
    METER_EVENT,
    Failure,
    MeterEvent,
    Subscription,
    read_retry_after,
    read_subscription,
)
from mailprobe.storage.records import Account

log = logging.getLogger("mailprobe.payments")

T = TypeVar("T")

CONNECT_S = 5.0
SUBSCRIPTIONS_MAX = 100  # a page, newest first: who has more has ended all but a few
UNFOLDED_MAX = 10  # of them are asked for their products, where no price tells the tier
DUPLICATE = "event already exists with identifier"  # Stripe's words; mostly without a code
UNSENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.InvalidURL,
    httpx.PoolTimeout,
    httpx.ProxyError,
)
ONLY_THIS_ONE = (400, 402, 404)  # statuses that say nothing of other requests
CLOSING_S = 2.0


@dataclass(frozen=True, slots=True)
class StripePace:
    """How long we wait for Stripe, and how fast the outbox is emptied.

    A letter is due 12 s after its slot began, and has to leave within 30.
    """

    timeout_s: float = 15.0  # for one answer of Stripe's
    answer_s: float = 10.0  # in all while somebody waits for us: an owner, or Stripe with an event
    repeats_s: tuple[float, ...] = (0.3, 1.0)  # pauses in it before what may be asked twice is
    poll_s: float = 2.0
    run_s: float = 25.0  # nothing begins after it, and a customer and an event end in the lease
    lease_s: float = 60.0
    at_once: int = 64  # letters in a round; of one customer one after the other: Stripe's rule
    backoff_max_s: float = 60.0  # with Stripe away for hours, this long after it is back


PACE = StripePace()


class StripeFailed(Exception):
    """Stripe did not do it, or may not have done it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.why)
        self.failure = failure


class CustomerMissing(StripeFailed):
    """Stripe has no such customer: it was deleted."""


class AlreadyThere(StripeFailed):
    """Stripe has a meter event of this identifier."""


class StripeTransport(sdk.HTTPClient):
    """How the SDK reaches Stripe. A failure keeps its cause, which tells how far it got."""

    name = "httpx"

    def __init__(self, patience_s: float) -> None:
        super().__init__()
        timeout = httpx.Timeout(patience_s, connect=min(CONNECT_S, patience_s))
        self._http = httpx.AsyncClient(timeout=timeout)

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        try:
            got = await self._http.request(method, url, headers=headers, content=post_data)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = "Stripe cannot be reached"
            raise sdk.APIConnectionError(why) from error  # type: ignore[no-untyped-call]
        return got.content, got.status_code, got.headers

    async def close_async(self) -> None:
        await self._http.aclose()


class Stripe:
    """What we ask Stripe for. Each question is asked once; raises StripeFailed."""

    def __init__(self, key: str, api_base: str | None, pace: StripePace = PACE) -> None:
        sdk.enable_telemetry = False  # else it writes a file into the home directory
        logging.getLogger("stripe").setLevel(logging.WARNING)  # below that are whole bodies
        self._wire = StripeTransport(pace.timeout_s)
        self._client = sdk.StripeClient(
            key,
            http_client=self._wire,
            max_network_retries=0,
            base_addresses={"api": api_base} if api_base else {},
        )
        self._timeout_s = pace.timeout_s

    async def close(self) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSING_S):
            await self._wire.close_async()

    async def count(self, event: MeterEvent) -> None:
        """Add to the customer's meter; an identifier that Stripe has already is as good.

        The SDK makes an Idempotency-Key of its own for each try: a fixed one would
        have Stripe repeat a 500 for a day.
        """
        try:
            await self._request(
                lambda: self._client.v1.billing.meter_events.create_async(
                    {
                        "event_name": METER_EVENT,
                        "payload": {
                            "stripe_customer_id": event.customer_id,
                            "value": str(event.value),
                        },
                        "identifier": event.identifier,
                        "timestamp": event.at,
                    }
                )
            )
        except AlreadyThere:
            log.info("Stripe had the meter event %s already", event.identifier)

    async def make_customer(self, account: Account) -> str:
        """One for an account's generation, however often it is asked for within a day."""
        customer = await self._request(
            lambda: self._client.v1.customers.create_async(
                {"email": account.email, "metadata": {"account_id": account.id}},
                {"idempotency_key": _customer_key(account)},
            )
        )
        return customer.id

    async def portal(self, customer_id: str, return_url: str) -> str:
        session = await self._request(
            lambda: self._client.v1.billing_portal.sessions.create_async(
                {"customer": customer_id, "return_url": return_url}
            )
        )
        return session.url

    async def subscriptions(self, customer_id: str) -> list[Subscription]:
        """All of a customer's, those that have ended too, as they are now."""
        found = await self._request(
            lambda: self._client.v1.subscriptions.list_async(
                {"customer": customer_id, "status": "all", "limit": SUBSCRIPTIONS_MAX}
            )
        )
        reported = [_read(one) for one in found.data]
        return [
            one if one.tier or position >= UNFOLDED_MAX else await self._with_products(one)
            for position, one in enumerate(reported)
        ]

    async def _with_products(self, one: Subscription) -> Subscription:
        """The same with what its prices' products say; a list cannot be unfolded so deep."""
        found = await self._request(
            lambda: self._client.v1.subscriptions.retrieve_async(
                one.id, {"expand": ["items.data.price.product"]}
            )
        )
        return _read(found)

    async def _request(self, question: Callable[[], Awaitable[T]]) -> T:
        try:
            with trio.fail_after(self._timeout_s):
                return await question()
        except trio.TooSlowError:
            raise StripeFailed(Failure("Stripe did not answer in time", certain=False)) from None
        except sdk.StripeError as error:
            raise _failed(error) from None  # it carries bodies and headers
        except Exception as error:
            raise error.with_traceback(None)  # noqa: B904  (a bug; the SDK's frames hold the key)


def _customer_key(account: Account) -> str:
    """Another one after each customer that was deleted: else Stripe would repeat that one's making."""
    generation = f"-{account.customer_generation}" if account.customer_generation else ""
    return f"customer-{account.id}{generation}"


def _failed(error: sdk.StripeError) -> StripeFailed:
    """Was it certainly not done, does it concern all, how long do we have to wait?"""
    if isinstance(error, sdk.APIConnectionError):
        cause = error.__cause__
        unsent = isinstance(cause, UNSENT)
        how = "cannot be reached" if unsent else "was lost on the way"
        return StripeFailed(Failure(f"Stripe {how} ({type(cause).__name__})", certain=unsent))
    status, code = error.http_status or 0, error.code or ""
    if DUPLICATE in (error.user_message or "") or code == "duplicate_meter_event":
        return AlreadyThere(Failure("Stripe has it already", certain=True))
    if status < 400:
        return StripeFailed(Failure(f"what answered {status} is not Stripe", certain=False))
    if code == "resource_missing" and "customer" in (error.user_message or "").lower():
        return CustomerMissing(Failure("the customer was deleted", certain=True, general=False))
    refused = status < 500 and status != 408  # a proxy's time-out: it may have gone through
    return StripeFailed(
        Failure(
            f"Stripe answered {status}{_words_of(error, status)}",
            certain=refused,
            general=status not in ONLY_THIS_ONE and code != "lock_timeout",
            retry_after_s=read_retry_after((error.headers or {}).get("retry-after")),
        )
    )


def _words_of(error: sdk.StripeError, status: int) -> str:
    """Stripe's own, where they tell a person what to mend; those of a 401 show part of the key."""
    words = " ".join((error.user_message or "").split())
    return f": {words}" if words and status in ONLY_THIS_ONE else ""


def _read(reported: sdk.Subscription) -> Subscription:
    try:
        return read_subscription(reported.to_dict())
    except msgspec.ValidationError as error:
        why = f"a subscription of Stripe's cannot be read: {error}"
        raise StripeFailed(Failure(why, certain=True)) from None
