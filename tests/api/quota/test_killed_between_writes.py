"""kill -9 before any write of a request with an Idempotency-Key: it is done and billed once.

The service runs in its own process, and the test sends requests over HTTP. For each
request the service is killed before its first write, then before its second, and so on
until it survives; `make test` tries every fifth write, each case from another one on, for most
writes are those of every request. A repeat either does the work or gets the stored answer. Later
repeats get the same answer, octet for octet.
"""

import base64
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import h11
import httpx
import pytest
import trio

from mailprobe.api.mcp.tools import PROVISIONING_HEADER
from mailprobe.bench.lab import Lab
from mailprobe.storage.list_jobs.lists import UNLOADED
from tests.api.jobs.test_killed import (
    Receiver,
    environment,
    forking,
    make_accounts,
    open_receiver,
    started,
)
from tests.api.quota.killable_service import OFF, REACHED, Countdown
from tests.api.stores import asked
from tests.beside import run_beside
from tests.seeds import stride
from tests.warm_lab import start_lab

PATIENCE_S = 60.0
# Cases; each has one service, which waits half a second for the lease of a killed request.
AT_IDEMPOTENCY = 4
AGAIN_S = 0.05
EVERY = min(8, stride(1))  # write is tried
HOST = [("Host", "a.test")]
VERIFY, BATCH, KEYS = "/v1/email/verify", "/v1/email/verify/batch", "/v1/management/keys"
LISTS = "/v1/lists?start=0"


@dataclass(frozen=True)
class Done:
    """Counts of what requests have done for one account."""

    rows: int = 0
    billable: int = 0
    jobs: int = 0
    keys: int = 0
    lists: int = 0


@dataclass(frozen=True)
class Case:
    """A request, its answer's status, what it does once, and its minimum number of writes."""

    path: str
    body: Any
    status: int
    idempotency: Done
    writes_min: int


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


# "{}" stands for an address that a mail host accepts, "[]" for the URL of a receiver
CASES = {
    "a job": Case(VERIFY, {"email": "{}", "webhook": "[]"}, 202, Done(1, 1, 1), 20),
    "a single": Case(VERIFY, {"email": "{}"}, 200, Done(1, 1), 10),
    "a single that asks nobody": Case(VERIFY, {"email": "bad"}, 200, Done(1, 0), 8),
    "a malformed single": Case(VERIFY, {"email": 5}, 400, Done(1, 0), 8),
    "a batch": Case(BATCH, {"emails": ["{}", "bad", "a@mailinator.com"]}, 200, Done(3, 2), 10),
    "a list": Case(LISTS, {"email": "{}"}, 202, Done(lists=1), 8),
    "a key": Case(KEYS, {"label": "x"}, 201, Done(keys=1), 6),
    "a single by the tool server": Case("/mcp", tool("verify_email", email="{}"), 200, Done(1, 1), 10),
    "a malformed one by it": Case("/mcp", tool("verify_email", email=5), 200, Done(1, 0), 8),
    "a key by it": Case("/mcp", tool("create_api_key", label="x"), 200, Done(keys=1), 6),
}  # fmt: skip


@dataclass
class KillableService:
    """The service that is killed, and a client that repeats its requests."""

    process: "subprocess.Popen[str]"
    countdown: Countdown
    ports: list[int]
    database: str
    account: dict[str, str]
    receiver: Receiver
    emails: list[str]  # each of its own domain, so that nothing about it is cached
    webhook: str

    def text_of(self, case: Case, write: int) -> str:
        words = {"{}": self.emails[write % len(self.emails)], "[]": self.webhook}
        text = json.dumps(case.body)
        for mark, word in words.items():
            text = text.replace(json.dumps(mark), json.dumps(word))
        return text

    async def start(self) -> None:
        self.countdown.left = OFF
        await started(self.process)

    async def send(self, case: Case, write: int, *, doom: bool = False) -> httpx.Response | None:
        """Send a request; return None if the service died before its answer was whole.

        With `doom`, the service accepts the connection before its countdown starts. The
        next service would serve a connection that was not accepted, after its client left.
        """
        by_tool, manages = case.path == "/mcp", case.path == KEYS
        octets = self.text_of(case, write).encode()
        headers = {
            "Host": "a.test",
            "Authorization": f"Bearer {self.account['provisioning_key' if manages else 'key']}",
            PROVISIONING_HEADER: self.account["provisioning_key"],
            "Content-Type": "application/x-ndjson" if case.path == LISTS else "application/json",
            "Content-Length": f"{len(octets)}",
            "Idempotency-Key": f"key {write}",
        }
        http = h11.Connection(h11.CLIENT)
        with trio.fail_after(PATIENCE_S):
            async with await trio.open_tcp_stream("127.0.0.1", self.ports[by_tool]) as stream:
                if doom:
                    nowhere = h11.Request(method="GET", target="/nowhere", headers=HOST)
                    assert await answer_to(http, stream, nowhere)
                    http.start_next_cycle()
                    self.countdown.left = write
                asked_ = h11.Request(method="POST", target=case.path, headers=[*headers.items()])
                return await answer_to(http, stream, asked_, octets)

    async def repeat(self, case: Case, write: int) -> httpx.Response:
        """Repeat until the answer is final: 409 comes while the killed request's lease lasts."""
        with trio.fail_after(PATIENCE_S):
            while True:
                answer = await self.send(case, write)
                assert answer is not None
                if answer.status_code not in (409, 503):
                    return answer
                await trio.sleep(AGAIN_S)

    def done(self) -> Done:
        who = "account = (SELECT number FROM accounts WHERE id = ?)"
        rows, months, jobs, keys, lists = asked(
            self.database,
            "SELECT coalesce(sum(units), 0), coalesce(sum(CAST(billable AS integer)), 0)"
            f" FROM usage WHERE {who}",
            f"SELECT coalesce(sum(units), 0), coalesce(sum(billable), 0) FROM months WHERE {who}",
            f"SELECT count(*) FROM jobs WHERE {who}",
            f"SELECT count(*) FROM keys WHERE {who}",
            f"SELECT count(*) FROM lists WHERE NOT ({UNLOADED}) AND {who}",
            values=(self.account["account_id"],),
        )
        assert rows == months
        [(units, billable)], [(promised,)], [(made,)], [(sent,)] = rows, jobs, keys, lists
        return Done(int(units), int(billable), int(promised), int(made) - 2, int(sent))

    async def until_killed(self) -> None:
        with trio.fail_after(PATIENCE_S):
            while self.countdown.left != REACHED:  # noqa: ASYNC110 - another process writes it
                await trio.sleep(AGAIN_S)

    async def until_jobs_are_done(self) -> bool:
        """Wait until no job is left; return False if the service dies first."""
        with trio.fail_after(PATIENCE_S):
            while self.countdown.left != REACHED:
                [[(left,)]] = asked(
                    self.database, "SELECT count(*) FROM jobs WHERE state <> 'done'"
                )
                if not left:
                    return True
                await trio.sleep(AGAIN_S)
        return False


@asynccontextmanager
async def open_killable(tmp_path: Path, lab: Lab) -> AsyncIterator[KillableService]:
    settings, authority = environment(tmp_path, lab)
    settings["MAILPROBE_TOOLS_BIND"] = "127.0.0.1:0"
    file = tmp_path / "countdown"
    countdown = Countdown(file)
    with forking(settings, "tests.api.quota.killable_service", str(file)) as process:
        assert process.stdout
        ports = [
            int(port) for port in (await trio.to_thread.run_sync(process.stdout.readline)).split()
        ]
        database, key = settings["MAILPROBE_DATABASE"], settings.get("MAILPROBE_SECRET_KEY")
        [account] = await make_accounts(database, base64.b64decode(key) if key else None, 1)
        async with open_receiver(lab, authority) as (receiver, urls):
            emails = {text.rpartition("@")[2]: text for text in lab.addresses["deliverable"]}
            service = KillableService(
                process, countdown, ports, database, account, receiver,
                [*emails.values()], urls[0],
            )  # fmt: skip
            await service.start()
            yield service


async def answer_to(
    http: h11.Connection, stream: trio.SocketStream, request: h11.Request, octets: bytes = b""
) -> httpx.Response | None:
    """Send a request and read its answer; return None if the service died before its end."""
    events = [request, h11.Data(data=octets), h11.EndOfMessage()]
    head, body = None, b""
    try:
        await stream.send_all(b"".join(http.send(event) or b"" for event in events))
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await stream.receive_some(65536))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                return httpx.Response(head.status_code, headers=[*head.headers], content=body)
            else:
                return None
    except (trio.BrokenResourceError, h11.RemoteProtocolError):
        return None


def job_of(answer: httpx.Response) -> str | None:
    reported = answer.json()
    reported = reported.get("result", {}).get("structuredContent", reported)
    job_id: str | None = reported.get("job_id")
    return job_id


async def kill_before_each_write(tmp_path: Path, lab: Lab, case: Case, first_write: int) -> None:
    async with open_killable(tmp_path, lab) as service:
        before = service.done()
        for write in count(first_write, EVERY):
            first = await service.send(case, write, doom=True)
            if first is None:
                await service.until_killed()
            else:
                await service.until_jobs_are_done()
            survived = not service.countdown.stop()
            if survived:
                assert first is not None
                answer = first
            else:
                await service.start()
                answer = await service.repeat(case, write)
                assert await service.until_jobs_are_done()
            assert answer.status_code == case.status, answer.text
            if first is not None:  # the service was killed after it answered
                assert answer.content == first.content
            after = service.done()
            assert after == added(before, case.idempotency), write
            last = await service.repeat(case, write)
            assert (last.status_code, last.content) == (case.status, answer.content)
            assert last.headers["idempotency-replayed"] == "true"
            assert service.done() == after
            before = after
            if case.idempotency.jobs:
                job_id = job_of(answer)
                assert job_id
                assert service.receiver.calls[job_id] >= 1
                assert len(service.receiver.bodies[job_id]) == 1
            if survived:
                break
        assert write >= case.writes_min
        assert len(service.receiver.calls) == after.jobs


def added(one: Done, other: Done) -> Done:
    return Done(
        one.rows + other.rows, one.billable + other.billable, one.jobs + other.jobs,
        one.keys + other.keys, one.lists + other.lists,
    )  # fmt: skip


@pytest.fixture(scope="module")
def outcome(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], None]]:
    """Run the cases concurrently: each waits for leases most of the time."""
    with start_lab() as lab:
        acts = {
            name: partial(
                trio.run,
                kill_before_each_write,
                tmp_path_factory.mktemp("killed"),
                lab,
                case,
                number % EVERY,
            )
            for number, (name, case) in enumerate(CASES.items())
        }
        with run_beside(request, acts, at_once=AT_IDEMPOTENCY) as outcome:
            yield outcome


@pytest.mark.parametrize("case", CASES)
def test_killed_before_any_write_a_request_with_a_key_is_done_once(
    outcome: Callable[[str], None], case: str
) -> None:
    outcome(case)
