"""A running service in the lab, its description in a file, and a test key."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from msgspec import Struct

from mailprobe.bench.lab import start_lab
from mailprobe.bench.load.service_process import start_service


class DescribedService(Struct, frozen=True):
    """A service as the author of a client meets it."""

    url: str
    key: str
    test_key: str
    provisioning_key: str
    deliverable: str  # an address of the lab
    description: Path


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DescribedService]:
    folder = tmp_path_factory.mktemp("service")
    with start_lab() as lab, start_service(lab.env, folder) as running:
        provisioning = running.account["provisioning_key"]
        made = httpx.post(
            f"{running.url}/v1/management/keys",
            json={"test": True},
            headers={"Authorization": f"Bearer {provisioning}"},
            trust_env=False,
        )
        description = folder / "openapi.json"
        description.write_bytes(httpx.get(f"{running.url}/openapi.json", trust_env=False).content)
        assert json.loads(description.read_text())["openapi"].startswith("3.1")
        yield DescribedService(
            running.url,
            running.key,
            made.json()["key"],
            provisioning,
            lab.addresses["deliverable"][0],
            description,
        )
