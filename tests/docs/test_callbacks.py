"""The receiver's program in docs/callbacks.md accepts our signatures and no others."""

from datetime import UTC, datetime, timedelta
from typing import Any

from mailprobe.api.jobs.rules import callback_headers
from tests.docs.pages import blocks_in


def test_the_receivers_check_accepts_our_signatures_only() -> None:
    """The program of the page checks signatures that the sender makes."""
    (block,) = [one for one in blocks_in("python") if one.page.name == "callbacks.md"]
    page: dict[str, Any] = {}
    exec(block.text, page)
    body = '{"email":"ä@x.test","job_id":"1"}'.encode()
    for secret in ("a secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"):
        headers = callback_headers("1", body, secret, datetime.now(UTC))
        assert page["is_genuine"](headers, body, secret)
        assert not page["is_genuine"](headers, body + b" ", secret)
        assert not page["is_genuine"](headers, body, "another secret")
        late = callback_headers("1", body, secret, datetime.now(UTC) - timedelta(minutes=6))
        assert not page["is_genuine"](late, body, secret)
