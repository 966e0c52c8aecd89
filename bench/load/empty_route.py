"""`mailprobe serve` with one route more: GET /v1/empty, behind a standard key, answers `{}`.

What the server, the key's look-up, the log and the metrics cost by themselves. The
row joins the table of operations in this process alone: the product has no such route.

    python -m mailprobe.bench.load.empty_route serve
"""

from mailprobe.api.operations import table
from mailprobe.api.operations.operation import KEYED, Call, Operation, OperationReply
from mailprobe.api.quota.limits import LimitsLeft
from mailprobe.api.quota.reservation import Charge
from mailprobe.api.service import Service

PATH = "/v1/empty"


async def empty(service: Service, call: Call) -> OperationReply:
    """A constant, with the fields that a verification's answer has."""
    call.charge = Charge(service.quota, call.caller, "verify", call.admission)
    call.charge.limits = LimitsLeft(minute=1, minute_left=1, minute_more_s=60)
    return OperationReply(200, b"{}")


EMPTY = Operation("empty", "GET", PATH, "Nothing", empty, "standard", None, may=KEYED)


def main() -> None:
    table.OPERATIONS = (*table.OPERATIONS, EMPTY)  # before anything reads the table
    from mailprobe.api.cli import main as mailprobe

    mailprobe()


if __name__ == "__main__":
    main()
