"""schemathesis tests the running service against its own API description.

It runs every check on every operation, with valid and invalid requests, from a fixed
seed. One account is managed and another one verifies; otherwise the first revoked key
would stop the verifications.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from mailprobe.api.operations.table import OPERATIONS
from mailprobe.api.operations.verify import LIVE
from tests.api.service_process import Credentials, make_place, running
from tests.warm_lab import start_lab

EXAMPLES_MAX = 10  # of an operation; fewer may miss all that is accepted; one round, so that every machine tries the same
UNICODE_TABLES = (
    Path(__file__).parents[4] / ".hypothesis"
)  # made once; they were a fifth of a round
PATIENCE_S = 600.0  # a round takes half a minute, on a busy machine many times that

# wide limits, so that few requests are refused; test_edges.py tests the limits
PLANS = """
[scale]
rate_limit_per_min = 1_000_000
monthly_calls = 1_000_000
max_keys = 1_000_000
"""

# A key that comes again is rightly answered with 409 or 422; what is not a key may stay.
# No schema can express which hosts may be called back. Nor that evidence and advice
# do not go together with a webhook or async.
# Each answer is written down.
HOOKS = """
from ipaddress import IPv4Address
from random import randrange
from uuid import uuid4

import schemathesis

from mailprobe.api.operations.description_text import HEADERS

lists, jobs = [], []  # that there are


@schemathesis.hook
def before_call(context, case, kwargs):
    key = (case.headers or {}).get("Idempotency-Key")
    if key is not None and 1 <= len(key) <= 255:
        case.headers["Idempotency-Key"] = uuid4().hex
    is_negative = case.meta is not None and case.meta.generation.mode.is_negative
    if case.operation.path == "/v1/lists" and case.method == "POST" and not is_negative:
        case.body, case.media_type = "email\\nann@example.org\\n", "text/csv"
        for name in ("webhook", "column", "sheet", "encoding"):
            if isinstance((case.query or {}).get(name), str):
                del case.query[name]
        case.headers.pop("Webhook-Secret", None)
        case.headers["Content-Type"] = "text/csv"
    if case.operation.path.startswith("/v1/lists/{id}") and not is_negative:
        case.path_parameters["id"] = lists[-1] if lists else case.path_parameters["id"]
    if case.operation.path == "/v1/jobs/{id}" and not is_negative:
        case.path_parameters["id"] = jobs[-1] if jobs else case.path_parameters["id"]
    if case.operation.path == "/v1/forms/verify":
        if case.headers.get("Origin"):
            case.headers["Origin"] = "https://shop.example.org"
        case.headers["X-Forwarded-For"] = str(IPv4Address(randrange(2**32)))  # another visitor
    if case.operation.path == "/v1/bounces" and not is_negative:
        case.body, case.media_type = {"RecordType": "Bounce"}, "application/json"
        case.headers["Content-Type"] = "application/json"
    body = case.body
    if isinstance(body, dict) and str(body.get("webhook")).startswith("https://"):
        body["webhook"] = "https://hooks.example.org/mail"
    if isinstance(body, dict) and {"evidence", "advice"} & {n for n, on in (case.query or {}).items() if on == "1"}:
        body.pop("webhook", None)
        if body.get("async") is True:
            body["async"] = False


@schemathesis.hook
def after_call(context, case, response):
    if case.operation.path == "/v1/lists" and response.status_code == 202:
        lists.append(response.json()["list_id"])
    if case.operation.path == "/v1/email/verify" and response.status_code == 202:
        jobs.append(response.json()["job_id"])
    with open("answers.txt", "a") as answers:
        answers.write(f"{response.status_code} {case.method} {case.operation.path}\\n")


@schemathesis.check
def headers_are_described(context, response, case):
    described = case.operation.definition.raw["responses"].get(str(response.status_code))
    if described is not None:  # else it is a status that the server has for every path
        ours = {name.lower() for name in HEADERS} & {name.lower() for name in response.headers}
        known = {name.lower() for name in described.get("headers", ())}
        assert ours <= known, f"not described: {sorted(ours - known)}"
"""

# 402 beside schemathesis' own: the lab's accounts have no billing account.
# Warnings are failures where they say that a test was shallow; one of them is that same 402.
CONFIG = """
seed = 1
hooks = "hooks.py"
continue-on-failure = true

[auth.openapi]
standardKey = {{ bearer = "{key}" }}
formKey = {{ bearer = "{form_key}" }}
provisioningKey = {{ bearer = "{provisioning_key}" }}

[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 401, 402, 403, 404, 409, 429, "5xx"]

[generation]
max-examples = {examples_max}
database = "none"

[phases.coverage]
generate-duplicate-query-parameters = true

[cache]
enabled = false

[reports]
json = {{ path = "report.json" }}

[warnings]
fail-on = [
    "missing_auth", "unused_openapi_auth", "missing_test_data", "rate_limited",
    "missing_deserializer", "unsupported_regex", "base_url_mismatch", "method_not_allowed",
]
"""

# an operation that cannot succeed here, and how far it comes
NEAREST = {"create_billing_portal": 402}


def run_schemathesis(
    path: Path, url: str, verifier: Credentials, form_key: str, owner: Credentials
) -> "subprocess.CompletedProcess[str]":
    """Run schemathesis; everything that it writes stays below `path`."""
    path.mkdir()
    (path / "hooks.py").write_text(HOOKS)
    (path / "schemathesis.toml").write_text(
        CONFIG.format(
            examples_max=EXAMPLES_MAX,
            key=verifier.key,
            form_key=form_key,
            provisioning_key=owner.provisioning_key,
        )
    )
    words = ["run", f"{url}/openapi.json", "--checks", "all"]
    words += ["--include-path-regex", "^/"]  # unless it is asked for, the description is left out
    words += ["--exclude-path", "/v1/billing/stripe"]  # Stripe alone can sign for it
    words += ["--exclude-path", LIVE]  # its 101 is not an answer that HTTP clients can have
    return subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "--no-color", *words],
        cwd=path,
        env={**os.environ, "NO_PROXY": "*", "HYPOTHESIS_STORAGE_DIRECTORY": str(UNICODE_TABLES)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def answers(path: Path) -> Counter[tuple[str, int]]:
    """Return how often each operation was answered with each status."""
    names = {f"{operation.method} {operation.path}": operation.name for operation in OPERATIONS}
    counted: Counter[tuple[str, int]] = Counter()
    for line in (path / "answers.txt").read_text().splitlines():
        status, _, operation = line.partition(" ")
        if operation in names:  # or else it is a method that the path does not have
            counted[names[operation], int(status)] += 1
    return counted


def test_every_operation_keeps_its_description(tmp_path: Path) -> None:
    judge = tmp_path / "judge"
    with start_lab() as lab:
        place = make_place(tmp_path / "place", lab, PLANS)
        verifier, owner = place.make_account("scale"), place.make_account("scale")
        words = ("--origin", "https://shop.example.org", "--rate", "1000000")
        made = json.loads(place.mailprobe("key", "create", verifier.account_id, *words))
        place.env["MAILPROBE_TRUSTED_PROXIES"] = "127.0.0.1"  # so that the judge is many visitors
        with running(place) as service:
            done = run_schemathesis(judge, service.url, verifier, made["key"], owner)
            assert done.returncode == 0, done.stdout + done.stderr
            service.stop()
    assert "Traceback" not in place.log.read_text()
    report = json.loads((judge / "report.json").read_text())
    signed = [each for each in OPERATIONS if each.raw and each.key is None]  # by Stripe
    called = [each for each in OPERATIONS if each not in signed and each.path != LIVE]
    assert report["operations"]["tested"] == len(called)
    assert {phase["status"] for phase in report["phases"].values()} == {"success"}, done.stdout
    answered = answers(judge)
    for operation in called:
        assert answered[operation.name, NEAREST.get(operation.name, operation.status)], answered
        if operation.key is not None:
            assert answered[operation.name, 401], answered
