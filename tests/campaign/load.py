"""The clients of the campaign: they repeat what they may repeat until it is acknowledged."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import trio
from msgspec import Struct, field

from tests.api.service_process import Credentials
from tests.campaign.witness import Book, Units, Witness

VERIFY, BATCH, STREAM = "/v1/email/verify", "/v1/email/verify/batch", "/v1/email/verify/stream"
UPLOAD = "/v1/lists?name=campaign&patience_s=0"  # hosts are waited for in minutes
ANSWER_S = 15.0  # then a client gives up, and repeats
PAUSE_S = 0.05  # after a refusal or a lost connection
PACE_S = 0.01
# An answer that says: again, later.
LATER = frozenset({408, 409, 429, 503, 507})
LIST_ROWS = (30, 120)


class Pool(Struct, frozen=True):
    """Addresses of which it is certain whether their results are billable."""

    free: Sequence[str]  # they fail layer 1
    billable: Sequence[str]

    def draw(self, rng: random.Random, size: int) -> list[str]:
        return [rng.choice(rng.choice((self.free, self.billable))) for _ in range(size)]

    def units(self, emails: Sequence[str]) -> Units:
        return Units(len(emails), sum(email not in self.free for email in emails))


class Request(Struct):
    """A request that is repeated until it is acknowledged."""

    path: str
    content: bytes
    content_type: str
    status: int  # of the acknowledgement
    units: Units
    key: str
    acknowledged: Callable[[Any], None]
    tries: int = 0
    answer: bytes = b""  # of the first acknowledgement


class Repeater(Struct):
    """Sends what `draw` makes, each until it is acknowledged; one request at a time."""

    book: Book
    witness: Witness
    draw: Callable[[], Request]
    rng: random.Random
    pending: Request | None = None
    is_last: bool = False  # it begins no new request

    async def run(self, url: str) -> None:
        """Until the nursery ends it, or nothing is pending and it is the last."""
        async with open_client(url, self.book.who) as client:
            while self.pending is not None or not self.is_last:
                if self.pending is None:
                    self.pending = self.draw()
                    self.book.asked += self.pending.units
                await self._send(client, self.pending)

    async def _send(self, client: httpx.AsyncClient, request: Request) -> None:
        answer = await _posted(client, request)
        request.tries += 1
        if answer is None or answer.status_code in LATER:
            await trio.sleep(PAUSE_S)
        elif answer.status_code != request.status:
            self.witness.wrong.append(f"{request.path} got {answer.status_code}: {answer.text}")
            self.pending = None
        elif not request.answer and self.rng.random() < 0.2:
            request.answer = answer.content  # as if it had been lost on its way
        else:
            if request.answer and request.answer != answer.content:
                self.witness.wrong.append(f"{request.path} was repeated with another answer")
            request.acknowledged(answer.json())
            self.witness.acknowledge(self.book, request.units)
            self.pending = None
            await trio.sleep(PACE_S)


class PlainClient(Struct):
    """Streams without an idempotency key: each line that arrives is acknowledged, at most once."""

    book: Book
    witness: Witness
    pool: Pool
    rng: random.Random
    is_last: bool = False

    async def run(self, url: str) -> None:
        async with open_client(url, self.book.who) as client:
            while not self.is_last:
                emails = self.pool.draw(self.rng, 20)
                self.book.asked += self.pool.units(emails)
                try:
                    async with client.stream("POST", STREAM, json={"emails": emails}) as answer:
                        if answer.status_code == 200:
                            await self._take(answer)
                        elif answer.status_code not in LATER:
                            self.witness.wrong.append(f"{STREAM} got {answer.status_code}")
                except httpx.TransportError:
                    pass
                await trio.sleep(PAUSE_S)

    async def _take(self, answer: httpx.Response) -> None:
        rest = b""
        async for octets in answer.aiter_raw():
            *lines, rest = (rest + octets).split(b"\n")
            for line in lines:
                units = self.pool.units([json.loads(line)["email"]])
                self.witness.acknowledge(self.book, units)


def open_client(url: str, who: Credentials) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {who.key}"}
    return httpx.AsyncClient(
        base_url=url, headers=headers, timeout=ANSWER_S, trust_env=False, verify=False
    )


async def _posted(client: httpx.AsyncClient, request: Request) -> httpx.Response | None:
    headers = {"Idempotency-Key": request.key, "Content-Type": request.content_type}
    try:
        return await client.post(request.path, content=request.content, headers=headers)
    except httpx.TransportError:
        return None


class Draws(Struct):
    """Makes requests of each kind, at random."""

    pool: Pool
    rng: random.Random
    witness: Witness
    webhooks: Sequence[str]
    made: int = field(default=0)

    def check(self) -> Request:
        """An address, or a few together."""
        emails = self.pool.draw(self.rng, self.rng.choice((1, 8)))
        if len(emails) == 1:
            return self._request(VERIFY, {"email": emails[0]}, emails, lambda _: None)
        return self._request(BATCH, {"emails": emails}, emails, lambda _: None)

    def job(self) -> Request:
        """An address whose result is posted."""
        emails = self.pool.draw(self.rng, 1)
        body = {"email": emails[0], "webhook": self.rng.choice(self.webhooks)}
        return self._request(
            VERIFY, body, emails, lambda made: self.witness.jobs.add(made["job_id"]), 202
        )

    def list(self) -> Request:
        """A list, whose addresses may occur twice."""
        emails = [self.rng.choice(self.pool.billable) for _ in range(self.rng.randint(*LIST_ROWS))]
        text = "email\n" + "".join(f"{email}\n" for email in emails)
        units = self.pool.units(list(dict.fromkeys(emails)))

        def keep(made: Any) -> None:
            self.witness.lists[made["list_id"]] = (units.units, len(emails))

        return Request(UPLOAD, text.encode(), "text/csv", 202, units, self._key(), keep)

    def _request(
        self,
        path: str,
        body: object,
        emails: Sequence[str],
        acknowledged: Callable[[Any], None],
        status: int = 200,
    ) -> Request:
        units = self.pool.units(emails)
        octets = json.dumps(body).encode()
        return Request(path, octets, "application/json", status, units, self._key(), acknowledged)

    def _key(self) -> str:
        self.made += 1
        return f"{self.rng.getrandbits(64):x}-{self.made}"
