"""From `docker run` to a verified address through the dashboard's first page, without a terminal."""

import json
import re
import urllib.request
from http.cookiejar import CookieJar
from urllib.parse import urlencode

from mailprobe.bench.load.private_postgres import free_port
from tests.container.conftest import started

COMMAND_S = 60.0


def test_the_first_page_leads_to_a_verified_address(image: str) -> None:
    port = free_port()
    # The volume has no name, so that it is new each time: only a new one gives the first account's link.
    words = ("--publish", f"127.0.0.1:{port}:8080", "--volume", "/data")
    with started("mailprobe-test-first-page", port, *words) as container:
        container.wait_until_healthy()
        found = re.search(r"/dashboard/welcome\?token=(\S+)", container.logs())
        assert found is not None
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))

        def page(path: str, **fields: str) -> str:
            sent = urlencode(fields).encode() if fields else None
            with browser.open(container.url + path, sent, timeout=COMMAND_S) as response:
                text: str = response.read().decode()
                return text

        assert 'name="own"' in page(found[0])
        made = page("/dashboard/welcome", token=found[1], email="ann@example.org", own="on")
        key = re.search(r"sk_live_\w+", made)
        assert key is not None
        asked = urllib.request.Request(
            f"{container.url}/v1/email/verify",
            json.dumps({"email": "bob@mailinator.com"}).encode(),
            {"Authorization": f"Bearer {key[0]}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=COMMAND_S) as response:
            assert json.load(response)["status"] == "invalid"
        assert "Overview" in page("/dashboard")
