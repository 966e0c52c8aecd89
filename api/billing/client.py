"""The provider client: requests to Stripe through its SDK, and the meaning of failures.

The SDK's asynchronous client gets an HTTP client of ours (httpx on trio), as its
documentation allows. The SDK's own httpx client treats every bug as a lost connection,
and sends bodies in a way that httpx has deprecated. The SDK does not retry, because only
our code knows what may be sent twice.

No log line or exception from here contains a key or a portal address.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import httpx
import msgspec
import stripe as sdk
import trio

from mailprobe.storage.records import Account

from .rules import (
    METER_EVENT,
    Failure,
    MeterEvent,
    Subscription,
    read_retry_after,
    read_subscription,
)

log = logging.getLogger("mailprobe.billing")

T = TypeVar("T")

CONNECT_S = 5.0
SUBSCRIPTIONS_MAX = 100  # one page, newest first; of a longer list only few can be live
UNFOLDED_MAX = 10  # subscriptions whose products are fetched because no price names the tier
DUPLICATE = "event already exists with identifier"  # Stripe's message; it mostly has no code
UNSENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.InvalidURL,
    httpx.PoolTimeout,
    httpx.ProxyError,
)
ONLY_THIS_ONE = (400, 402, 404)  # statuses that concern a single request
CLOSING_S = 2.0


class StripePace(msgspec.Struct, frozen=True):
    """Time limits of requests to Stripe, and the rate of the outbox worker.

    A message is due 12 s after its slot began, and must be sent within 30 s.
    """

    timeout_s: float = 15.0  # for one response
    # In all, while a client waits: an account's owner, or Stripe with an event.
    answer_s: float = 10.0
    # Pauses within answer_s before a repeatable request is retried.
    repeats_s: tuple[float, ...] = (0.3, 1.0)
    poll_s: float = 2.0
    run_s: float = 25.0  # no request of a batch starts later, as the next batch waits for it
    lease_s: float = 60.0
    at_once: int = 64  # messages per batch; Stripe accepts one event per customer at a time
    backoff_max_s: float = 60.0  # after an outage of hours, the longest delay once Stripe is back


PACE = StripePace()


class StripeFailed(Exception):
    """A request failed, or its result is unknown (see Failure.certain)."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.why)
        self.failure = failure


class CustomerMissing(StripeFailed):
    """Stripe has no such customer: it was deleted."""


class AlreadyThere(StripeFailed):
    """Stripe has a meter event of this identifier."""


class StripeTransport(sdk.HTTPClient):
    """The SDK's HTTP transport. A failure keeps its cause, which says whether it was sent."""

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
            raise sdk.APIConnectionError("Stripe cannot be reached") from error  # type: ignore[no-untyped-call]
        return got.content, got.status_code, got.headers

    async def close_async(self) -> None:
        await self._http.aclose()


class Stripe:
    """The requests to Stripe. Each is sent once; all raise StripeFailed."""

    def __init__(self, key: str, api_base: str | None, pace: StripePace = PACE) -> None:
        sdk.enable_telemetry = False  # telemetry writes a file into the home directory
        logging.getLogger("stripe").setLevel(logging.WARNING)  # lower levels log whole bodies
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
        """Add to the customer's meter; an identifier that Stripe has already counts as success.

        The SDK makes a new Idempotency-Key for each attempt: with a fixed one Stripe
        would repeat a 500 for a day.
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
            log.info("meter event sent before: identifier=%s", event.identifier)

    async def make_customer(self, account: Account) -> str:
        """Create a customer and return its id; repeated calls within a day return the same one."""
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
        """Return the customer's current subscriptions, also ended ones, newest first."""
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
        """Return the subscription with its products expanded, which a list request cannot do."""
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
            raise _failed(error) from None  # the SDK's error contains bodies and headers
        except Exception as error:
            raise error.with_traceback(None)  # noqa: B904  (a bug; the SDK's frames hold the key)


def _customer_key(account: Account) -> str:
    """Return the idempotency key, new after each deletion: an old one would return the deleted customer."""
    generation = f"-{account.customer_generation}" if account.customer_generation else ""
    return f"customer-{account.id}{generation}"


def _failed(error: sdk.StripeError) -> StripeFailed:
    """Classify an SDK error: whether it is certain, whether it is general, and its Retry-After."""
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
    # 408 is a proxy's time-out: the request may have been executed.
    refused = status < 500 and status != 408
    return StripeFailed(
        Failure(
            f"Stripe answered {status}{_words_of(error, status)}",
            certain=refused,
            general=status not in ONLY_THIS_ONE and code != "lock_timeout",
            retry_after_s=read_retry_after((error.headers or {}).get("retry-after")),
        )
    )


def _words_of(error: sdk.StripeError, status: int) -> str:
    """Return Stripe's message if it helps an operator; a 401's message shows part of the key."""
    words = " ".join((error.user_message or "").split())
    return f": {words}" if words and status in ONLY_THIS_ONE else ""


def _read(reported: sdk.Subscription) -> Subscription:
    try:
        return read_subscription(reported.to_dict())
    except msgspec.ValidationError as error:
        why = f"a subscription of Stripe's cannot be read: {error}"
        raise StripeFailed(Failure(why, certain=True)) from None
