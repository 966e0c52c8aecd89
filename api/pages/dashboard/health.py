"""What is wrong now: hosts that refuse this machine, resolvers, callbacks, the store."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from mailprobe.api.service import Service
from mailprobe.storage.records import Job

SHOWN_MAX = 10
JOBS_SEEN = 200


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong, and what to do about it."""

    what: str
    details: tuple[str, ...] = ()
    action: str = ""
    url: str = ""  # where it is seen
    link: str = ""  # what is seen there


async def trouble_of(service: Service, account_id: str, *, names_hosts: bool) -> list[Trouble]:
    """What is wrong with the service and with this account's callbacks. Raises StoreUnavailable.

    Only the operator learns the names of hosts: they may be of other customers' lists.
    """
    engine = service.quota.engine
    found = []
    refusing = sorted(
        (name, cause.words)
        for name, cause in engine.dispatcher.hosts_backing_off()
        if cause.about_us
    )
    if refusing:
        noun = "mail host refuses" if len(refusing) == 1 else "mail hosts refuse"
        found.append(
            Trouble(
                f"{len(refusing):,} {noun} this machine.",
                tuple(f"{name}: {words}" for name, words in refusing[:SHOWN_MAX] if names_hosts),
                "Their addresses stay unknown. The operator should run mailprobe doctor, which "
                "looks for the machine's address on the blocklists.",
            )
        )
    if failing := engine.routes.failing_resolvers():
        found.append(
            Trouble(
                "A resolver does not answer.", tuple(failing) if names_hosts else (),
                "Addresses may be unknown for it; the operator should check the network.",
            )
        )  # fmt: skip
    delivering = await service.store.jobs(
        account_id=account_id, state="delivering", limit=JOBS_SEEN
    )
    failed = [job for job in delivering if job.tries]
    if failed:
        hosts = sorted({job.host.partition(" ")[2] or job.host for job in failed})
        noun = "callback fails" if len(failed) == 1 else "callbacks fail"
        found.append(
            Trouble(
                f"{len(failed):,} {noun}.", tuple(hosts[:SHOWN_MAX]),
                "They are repeated, and can be sent again.", *_seen_at(failed, hosts),
            )
        )  # fmt: skip
    return found


def _seen_at(failed: Sequence[Job], hosts: Sequence[str]) -> tuple[str, str]:
    """The page of the failing job, or of those jobs, and what to call it."""
    if len(failed) == 1:
        return f"/dashboard/jobs/{failed[0].id}", "its attempts"
    query = {"state": "delivering", **({"receiver": hosts[0]} if len(hosts) == 1 else {})}
    return f"/dashboard/jobs?{urlencode(query)}", "the jobs"
