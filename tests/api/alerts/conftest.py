"""Fixtures of the alert tests."""

import pytest

from tests.api.alerts.alerts_fixture import AlertsSetup


@pytest.fixture
async def setup() -> AlertsSetup:
    return AlertsSetup()
