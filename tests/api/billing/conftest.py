"""Fixtures of the billing tests."""

from collections.abc import AsyncIterator

import pytest

from tests.api.billing.billing_fixture import BillingSetup, open_billing


@pytest.fixture
async def billing() -> AsyncIterator[BillingSetup]:
    async with open_billing() as billing:
        yield billing
