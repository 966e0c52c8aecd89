"""kill -9 while an upload is stored: its repeat is stored at once, and nothing of the first is left."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx

from mailprobe.bench.lab import Lab
from tests.api.lists.test_killed import PLANS, lab, run
from tests.api.service_process import (
    PATIENCE_S,
    POLL_S,
    Credentials,
    free_bind,
    make_place,
    running,
)

__all__ = ["lab"]  # the fixture

ROWS = 60_000
KEY = "the-list-of-march"


def upload(url: str, who: Credentials, octets: bytes) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/lists?start=0",
        content=octets,
        headers={
            "Authorization": f"Bearer {who.key}",
            "content-type": "text/csv",
            "idempotency-key": KEY,
        },
        timeout=PATIENCE_S,
        trust_env=False,
        verify=False,
    )


def test_an_upload_whose_process_was_killed_is_repeated_at_once(tmp_path: Path, lab: Lab) -> None:
    octets = "".join(["email\n", *(f"a{n}@friendly.test\n" for n in range(ROWS))]).encode()
    place, bind = make_place(tmp_path, lab, PLANS, tools_bind=""), free_bind()
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(1))
        service = stack.enter_context(running(place, bind=bind))
        who = place.make_account("scale")

        def first() -> None:
            with suppress(httpx.TransportError):  # its service is killed
                upload(service.url, who, octets)

        cut = threads.submit(first)
        end = time.monotonic() + PATIENCE_S
        storing = (
            "SELECT count(*) FROM list_chunks JOIN lists ON lists.number = list"
            " WHERE state = 'loading' AND place > 20"
        )
        while not run(place, storing)[0][0]:
            assert time.monotonic() < end, "no row is stored"
            time.sleep(POLL_S)
        service.kill()
        cut.result()
        assert run(place, "SELECT count(*) FROM idempotency_records WHERE answer IS NULL") == [(1,)]
        service = stack.enter_context(running(place, bind=bind))
        answer = upload(service.url, who, octets)
        assert answer.status_code == 202, answer.text
        found = httpx.get(
            f"{service.url}/v1/lists",
            headers={"Authorization": f"Bearer {who.key}"},
            trust_env=False,
            verify=False,
        ).json()["lists"]
        assert [(each["list_id"], each["rows"]) for each in found] == [
            (answer.json()["list_id"], ROWS)
        ]
        again = upload(service.url, who, octets)
        assert (again.status_code, again.content) == (202, answer.content)
        service.stop()
