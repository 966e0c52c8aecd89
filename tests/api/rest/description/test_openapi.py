"""The API description: valid, closed, and true."""

import json
import re
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from mailprobe.api.error_table import TABLE
from mailprobe.api.operations.bounces import BOUNCES
from mailprobe.api.operations.operation import Operation
from mailprobe.api.operations.table import OPERATIONS, description
from mailprobe.api.quota.list_limits import BOUNDS
from mailprobe.storage.list_records import ListOrder
from mailprobe.storage.records import JobOrder
from tests.api.service_fixture import FORM_ORIGIN, PLACES, RunningService

SPEC: dict[str, Any] = json.loads(description(PLACES))
REQUIRED = {
    "ManagementAccountResponse": {"account_id", "tier", "limits", "usage_this_month"},
    "ManagementKey": {"id", "prefix", "created_at"},
    "ManagementCreateKeyResponse": {"id", "key", "created_at", "warning"},
    "ManagementProvisioningKeyResponse": {"id", "key"},
    "ApiError": {"error", "message", "action", "docs"},
    "RateLimitError": {"error", "message", "action", "docs", "limit", "window", "reset_at"},
    "MonthlyQuotaError": {"error", "message", "action", "docs", "limit", "used", "reset_at"},
    "PaymentRequiredError": {
        "error", "message", "action", "docs", "hard_cap_eur", "current_overage_eur"},
}  # fmt: skip


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for value in node:
            yield from nodes(value)


def follow(reference: str) -> Any:
    node: Any = SPEC
    assert reference.startswith("#/")
    for step in reference[2:].split("/"):
        node = node[step.replace("~1", "/").replace("~0", "~")]
    return node


def contents() -> Iterator[tuple[str, Any, Any]]:
    """Every JSON body of the description: where, its schema, each example."""
    for path, methods in SPEC["paths"].items():
        for method, operation in methods.items():
            answers = {**operation["responses"], "body": operation.get("requestBody", {})}
            for where, answer in answers.items():
                body = answer.get("content", {}).get("application/json")
                if body is None:
                    continue
                examples = [body["example"]] if "example" in body else []
                examples += [known["value"] for known in body.get("examples", {}).values()]
                assert examples, (method, path, where)
                for example in examples:
                    yield f"{method} {path} {where}", body["schema"], example


def test_it_is_a_valid_openapi_3_1_description() -> None:
    assert list(OpenAPIV31SpecValidator(SPEC).iter_errors()) == []
    assert SPEC["openapi"].startswith("3.1")
    assert SPEC["info"]["version"] == "1.0.0"


def test_every_reference_leads_somewhere_and_nothing_is_left_over() -> None:
    references = {node["$ref"] for node in nodes(SPEC) if "$ref" in node}
    for reference in references:
        assert isinstance(follow(reference), dict)
    named = {ref.rpartition("/")[2] for ref in references if "/schemas/" in ref}
    assert set(SPEC["components"]["schemas"]) - named == {"ManagementProvisioningKeyResponse"}


def test_every_operation_is_there_once_with_every_answer_it_may_give() -> None:
    reported = {
        operation["operationId"]: (method, path, set(operation["responses"]))
        for path, methods in SPEC["paths"].items()
        for method, operation in methods.items()
    }
    assert reported == {
        operation.name: (
            operation.method.lower(),
            operation.path,
            {
                str(operation.status),
                *(["202"] if operation.promises else []),
                *(str(TABLE[no].status) for no in operation.refusals),
            },
        )
        for operation in OPERATIONS
    }


@pytest.mark.parametrize(("where", "schema", "example"), list(contents()))
def test_every_example_is_what_its_schema_says(where: str, schema: Any, example: Any) -> None:
    whole = {**schema, "components": SPEC["components"]}
    jsonschema.Draft202012Validator(
        whole, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    ).validate(example)


@pytest.mark.parametrize("name", REQUIRED)
def test_the_required_fields_are_the_specifications(name: str) -> None:
    assert set(SPEC["components"]["schemas"][name]["required"]) == REQUIRED[name]


def test_a_result_has_its_14_fields_and_may_have_evidence_and_advice() -> None:
    result = SPEC["components"]["schemas"]["VerifyEmailResult"]
    assert len(result["required"]) == 14
    assert set(result["properties"]) - set(result["required"]) == {
        *("evidence", "reason", "light", "advice")
    }


def test_every_field_and_operation_says_what_it_is() -> None:
    for name, schema in SPEC["components"]["schemas"].items():
        assert schema.get("description"), name
        for field, known in schema.get("properties", {}).items():
            assert known.get("description"), (name, field)
            assert "default" not in known, (name, field)
    for methods in SPEC["paths"].values():
        for operation in methods.values():
            assert operation["summary"]
            assert operation["description"]
            assert all(each["description"] for each in operation.get("parameters", ()))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_an_operation_stands_in_one_module(operation: Operation) -> None:
    """Its handler and the types of its bodies, so that a new one takes one file."""
    bodies = [operation.takes, operation.gives, operation.promises]
    places = {operation.handler.__module__, *(kind.__module__ for kind in bodies if kind)}
    places.discard("mailprobe.api.operations.list_uploads")  # its answer is a list's
    assert len(places) == 1


def test_only_what_has_no_caller_wants_no_key() -> None:
    open_to_all = {
        operation["operationId"]
        for methods in SPEC["paths"].values()
        for operation in methods.values()
        if not operation["security"]
    }
    assert open_to_all == {"health", "openapi", "take_billing_event"}


async def test_it_is_served_without_a_key(autojump_clock, shop: RunningService) -> None:
    got = await shop.request("GET", "/openapi.json", key=None)
    assert (got.status, got.headers["content-type"]) == (200, "application/json")
    assert got.body == SPEC
    assert got.body["servers"] == [{"url": "https://api.test"}]


async def test_answers_are_what_the_description_says(autojump_clock, shop: RunningService) -> None:
    """Each success of each operation matches its schema."""
    made = (await shop.manage("POST", "/keys", {"label": "x"})).body["id"]
    one = {"email": "known@friendly.test"}
    bodies: dict[str, Any] = {
        "verify_email": one,
        "verify_form": one,
        "verify_batch": {"emails": ["a"]},
        "feed_bounces": BOUNCES["application/json"]["example"],
    }
    keys = {
        "standard": shop.key, "provisioning": shop.provisioning, "form": await shop.new_form_key(),
        None: None,
    }  # fmt: skip
    job = await shop.store.create_job(
        await shop.caller(), JobOrder(str(uuid4()), "a", None, ""), lambda ledger: None
    )
    stored = await shop.store.create_list(
        await shop.caller(), ListOrder(str(uuid4()), "list.csv", None, ""), BOUNDS
    )
    ids = {"jobs": job.id, "lists": stored.id}
    without = ("verify_stream", "create_billing_portal", "create_list")
    for operation in OPERATIONS:
        if operation.gives is None or operation.name in without:
            continue
        key = keys[operation.key]
        path = re.sub("{id}", ids.get(operation.section, made), operation.path)
        got = await shop.request(
            operation.method, path, bodies.get(operation.name), key=key,
            headers={"origin": FORM_ORIGIN},
        )  # fmt: skip
        assert got.status == operation.status
        answer = SPEC["paths"][operation.path][operation.method.lower()]["responses"]
        schema = answer[str(operation.status)]["content"]["application/json"]["schema"]
        whole = {**schema, "components": SPEC["components"]}
        jsonschema.Draft202012Validator(whole).validate(got.body)
