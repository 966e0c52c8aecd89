"""One example of every body, for the API description. Tests validate them against the schemas."""

import msgspec

from mailprobe.api.operations.examples import AT, ID
from mailprobe.api.schema import ListResponse, ListsResponse, ListWait, WaitingHost

LIST = ListResponse(
    list_id=str(ID),
    name="customers.csv",
    status="running",
    created_at=AT,
    rows=1_200,
    addresses=1_150,
    answered=400,
    counts={"deliverable": 350, "undeliverable": 30, "unknown": 20},
    per_minute=800.0,
    stage="asking",
    left_s=1_190.5,
    waits_for=(ListWait("hosts", 41, AT, 1, (WaitingHost("mx.hoster.example", 41, 16, "host_budget", AT, AT),)),),
    patience_s=14_400,
)  # fmt: skip

BODIES: tuple[msgspec.Struct, ...] = (
    LIST,
    ListsResponse([LIST]),
)
