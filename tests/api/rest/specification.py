"""What the tests of the specification share."""

from typing import Any

from tests.api.jobs.test_worker import Receiver
from tests.api.service_fixture import RunningService

# A service that performs jobs, and the receiver of its callbacks.
Working = tuple[RunningService, Receiver]


async def result(shop: RunningService, email: str) -> Any:
    return (await shop.verify(email)).body
