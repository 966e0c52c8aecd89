"""What the tests of the specification share."""

from typing import Any

from tests.api.jobs.test_worker import Receiver
from tests.api.service_fixture import RunningService

Working = tuple[
    RunningService, Receiver
]  # a service that performs jobs, and the receiver of its callbacks


async def result(shop: RunningService, email: str) -> Any:
    return (await shop.verify(email)).body
