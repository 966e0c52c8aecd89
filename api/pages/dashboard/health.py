"""What is wrong now: hosts that refuse this machine, resolvers, callbacks, the store."""

from dataclasses import dataclass

from mailprobe.api.service import Service

SHOWN_MAX = 10
JOBS_SEEN = 200


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong, and what to do about it."""

    what: str
    details: tuple[str, ...] = ()
    action: str = ""


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
                "Their addresses stay unknown. The operator should look for the machine's address on "
                "the blocklists.",
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
                "See the attempts under Jobs; they are repeated, and can be sent again.",
            )
        )  # fmt: skip
    return found
