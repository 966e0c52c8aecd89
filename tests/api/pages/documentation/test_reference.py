"""The reference says what the description says: every operation, field and error."""

import json

import pytest

from mailprobe.api.error_table import TABLE, Links
from mailprobe.api.operations.table import OPERATIONS, description
from mailprobe.api.pages.reference import ReferenceOperation, inline, operations_in

LINKS = Links("http://api.test", "http://api.test/docs", "http://api.test/dashboard")
SHOWN = {each.name: each for each in operations_in(json.loads(description(LINKS)))}


def test_every_operation_is_there_in_the_order_of_the_table() -> None:
    assert sorted(SHOWN) == sorted(operation.name for operation in OPERATIONS)
    assert SHOWN["verify_email"].key == "a standard key"
    assert SHOWN["get_account"].key == "a provisioning key"
    assert SHOWN["health"].key == "no key"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_error_is_there_with_its_body(operation) -> None:
    shown = SHOWN[operation.name]
    examples = {
        (answer.status, json.loads(text)["error"])
        for answer in shown.answers
        if answer.is_error and answer.body
        for _, text in answer.body.examples
    }
    assert examples == {
        (str(TABLE[refusal].status), TABLE[refusal].code) for refusal in operation.refusals
    }


@pytest.mark.parametrize("operation", SHOWN.values(), ids=lambda operation: operation.name)
def test_every_field_has_a_type(operation: ReferenceOperation) -> None:
    bodies = [operation.request, *(answer.body for answer in operation.answers)]
    fields = [field for body in bodies if body for field in body.fields]
    for field in [*fields, *operation.parameters]:
        assert field.kind
        assert "any" not in field.kind.split()


def test_limits_are_in_words() -> None:
    request = SHOWN["verify_batch"].request
    assert request is not None
    emails, smtp = request.fields
    assert (smtp.kind, smtp.required) == ("boolean", False)
    assert (emails.kind, emails.required) == ("list of string", True)
    assert emails.limits == "at least 1 items, at most 50 items"


def test_a_sentence_has_its_code_as_code_and_everything_else_as_text() -> None:
    assert inline(" `GET` with <b> & `a<b` ") == (
        "<code>GET</code> with &lt;b&gt; &amp; <code>a&lt;b</code>"
    )
