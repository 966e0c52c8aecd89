"""What the tests of the specification share."""

from typing import Any

from tests.api.jobs.test_worker import Receiver
from tests.api.service_fixture import Shop

Working = tuple[Shop, Receiver]  # a service that performs jobs, and the receiver of its callbacks


async def result(shop: Shop, email: str) -> Any:
    return (await shop.verify(email)).body
