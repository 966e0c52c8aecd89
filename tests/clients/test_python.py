"""A Python client generated from the description, by openapi-python-client, does every operation."""

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import DescribedService

GENERATE_S = 120
POLL_S = 0.1


@pytest.fixture(scope="module")
def generated(service: DescribedService, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Imports a module of the generated client by its name."""
    folder: Path = tmp_path_factory.mktemp("generated")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "openapi_python_client", "generate"),
            *("--path", service.description, "--output-path", folder / "described"),
            *("--meta", "none"),
        ],
        capture_output=True, text=True, timeout=GENERATE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    try:
        yield lambda name: importlib.import_module(f"described.{name}")
    finally:
        sys.path.remove(str(folder))


@pytest.fixture
def connect(generated: Any, service: DescribedService) -> Iterator[Callable[[str], Any]]:
    """Opens a generated client with this key; it is closed after the test."""
    with ExitStack() as stack:
        yield lambda key: stack.enter_context(
            generated("client").AuthenticatedClient(base_url=service.url, token=key)
        )


def test_it_verifies_one_address_and_a_batch(
    generated: Any, connect: Any, service: DescribedService
) -> None:
    models = generated("models")
    client = connect(service.key)
    single = generated("api.email.verify_email").sync(
        client=client, body=models.VerifyRequest(email=service.deliverable)
    )
    assert (single.email, single.status.value) == (service.deliverable, "deliverable")
    batch = generated("api.email.verify_batch").sync(
        client=client, body=models.BatchRequest(emails=["@", service.deliverable])
    )
    assert [result.status.value for result in batch.results] == ["invalid", "deliverable"]


def test_it_reads_evidence(generated: Any, connect: Any, service: DescribedService) -> None:
    models = generated("models")
    single = generated("api.email.verify_email").sync(
        client=connect(service.test_key),
        body=models.VerifyRequest(email="full@sandbox.test"),
        evidence=models.VerifyEmailEvidence.VALUE_1,
    )
    assert single.evidence.rule == "sandbox"


def test_it_has_the_lines_of_a_stream(
    generated: Any, connect: Any, service: DescribedService
) -> None:
    models = generated("models")
    reply = generated("api.email.verify_stream").sync_detailed(
        client=connect(service.test_key),
        body=models.BatchRequest(emails=["full@sandbox.test", "typo@sandbox.test"]),
    )
    results = [
        models.VerifyEmailResult.from_dict(json.loads(line)) for line in reply.content.splitlines()
    ]
    assert {result.email for result in results} == {"full@sandbox.test", "typo@sandbox.test"}


def test_it_stores_a_job_and_fetches_its_result(
    generated: Any, connect: Any, service: DescribedService
) -> None:
    models = generated("models")
    client = connect(service.test_key)
    stored = generated("api.email.verify_email").sync(
        client=client, body=models.VerifyRequest(email="role@sandbox.test", async_=True)
    )
    job = generated("api.jobs.get_job").sync(id=stored.job_id, client=client)
    assert (job.status.value, job.result.role, job.attempts) == ("done", True, [])


def test_it_uploads_a_list_and_reads_the_results(
    generated: Any, connect: Any, service: DescribedService
) -> None:
    client = connect(service.test_key)
    file = generated("types").File(payload=BytesIO(b"email\nfull@sandbox.test\n"))
    sent = generated("api.lists.create_list").sync(client=client, body=file, name="list.csv")
    while generated("api.lists.get_list").sync(sent.list_id, client=client).status.value != "done":
        time.sleep(POLL_S)
    reply = generated("api.lists.get_list_results").sync_detailed(sent.list_id, client=client)
    assert json.loads(reply.content)["email"] == "full@sandbox.test"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("quota", "MonthlyQuotaError"),
        ("rate_limited", "RateLimitError"),
        ("payment_required", "PaymentRequiredError"),
        ("overloaded", "ApiError"),
    ],
)
def test_errors_are_of_their_types(
    generated: Any, connect: Any, service: DescribedService, name: str, kind: str
) -> None:
    models = generated("models")
    error = generated("api.email.verify_email").sync(
        client=connect(service.test_key),
        body=models.VerifyRequest(email=f"{name}@sandbox.test"),
    )
    assert isinstance(error, getattr(models, kind))
    assert error.docs.startswith(service.url)


def test_it_manages_the_account(generated: Any, connect: Any, service: DescribedService) -> None:
    models, api = generated("models"), "api.management"
    client = connect(service.provisioning_key)
    made = generated(f"{api}.create_api_key").sync(
        client=client, body=models.CreateKeyRequest(label="generated")
    )
    listed = generated(f"{api}.list_api_keys").sync(client=client)
    assert made.id in [key.id for key in listed.keys]
    gone = generated(f"{api}.revoke_api_key").sync_detailed(id=made.id, client=client)
    assert gone.status_code == 204
    account = generated(f"{api}.get_account").sync(client=client)
    assert account.limits.max_keys == listed.max_
    assert len(generated(f"{api}.get_usage").sync(client=client).days) == 30
    assert generated(f"{api}.get_usage_summary").sync(client=client).tier == account.tier
    portal = generated(f"{api}.create_billing_portal").sync(client=client)
    assert portal.error == "no_billing_account"


def test_it_asks_whether_the_service_is_up(generated: Any, service: DescribedService) -> None:
    with generated("client").Client(base_url=service.url) as client:
        assert generated("api.service.health").sync(client=client).ok
