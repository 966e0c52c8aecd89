"""Present faults: hosts that refuse this machine, resolvers, callbacks, lists."""

from collections.abc import Sequence
from urllib.parse import urlencode

from msgspec import Struct

from mailprobe.storage.records import Job

from ...operations.list_jobs import ListResponse
from ...results.advice import capital
from ...service import Service
from .frame import HOME, LISTS_PAGE
from .roles import OPERATOR

SHOWN_MAX = 10
JOBS_SEEN = 200
CAUSES = {
    "monthly_quota_exceeded": "the month's verifications are used up",
    "hard_cap_reached": "your hard cap is reached",
    "key_revoked": "its key was revoked; started again, it uses the key of this sign-in",
    "paused_by_operator": "the operator of this service paused it",
}


class Trouble(Struct, frozen=True):
    """One thing that is wrong, what to do about it, and the page where that is done."""

    what: str
    details: tuple[str, ...] = ()
    action: str = ""
    url: str = ""  # where it is seen
    link: str = ""  # what is seen there
    fails: bool = False  # rather than waits


def words_of_cause(code: str | None) -> str:
    """Why a list is paused or has failed, from the code of the error."""
    return CAUSES.get(code or "", "something was refused")


async def trouble_of(
    service: Service, account_id: str, lists: list[ListResponse], *, for_operator: bool
) -> list[Trouble]:
    """What is wrong with the service, and with this account's lists and callbacks.

    Only the operator learns the names of hosts: they may be of other customers' lists. Raises
    StoreUnavailable.
    """
    return [
        *(of_checks(service) if for_operator else []),
        *_of_hosts(service, for_operator=for_operator),
        *_of_lists(lists),
        *await _of_callbacks(service, account_id),
    ]


def was_tested(service: Service) -> bool:
    """Whether this process has asked a mail host and a resolver, so that silence means health."""
    engine = service.quota.engine
    has_answer = any(each.answered_s is not None for each in engine.routes.resolvers())
    return has_answer and engine.probing.overview.statistics().hosts > 0


def of_checks(service: Service) -> list[Trouble]:
    """The checks of this machine that failed when somebody looked last."""
    deployment = service.deployment
    known = deployment.checks.known if deployment and deployment.checks else None
    failed = [each for each in known.checks if each.status == "failed"] if known else []
    if not failed:
        return []
    what, action = f"{len(failed)} checks of this machine fail.", ""
    names = tuple(f"{each.check}: {each.found}" for each in failed[:SHOWN_MAX])
    if len(failed) == 1:
        what, action, names = f"One check fails: {failed[0].check}.", capital(failed[0].found), ()
    url = f"{OPERATOR}#checks"
    return [Trouble(what, names, action, url, "See what to do", fails=True)]


def _of_hosts(service: Service, *, for_operator: bool) -> list[Trouble]:
    engine = service.quota.engine
    found = []
    refusing = sorted(
        (host.name, host.words)
        for host in engine.probing.overview.hosts_backing_off()
        if host.about_us
    )
    if refusing:
        noun = "mail host refuses" if len(refusing) == 1 else "mail hosts refuse"
        found.append(
            Trouble(
                f"{len(refusing):,} {noun} this machine.",
                tuple(f"{name}: {words}" for name, words in refusing[:SHOWN_MAX] if for_operator),
                "Their addresses stay unknown. The operator of the service should see whether the "
                "machine is on a blocklist.",
                *(_seen_by_operator("hosts") if for_operator else ()),
            )
        )
    if failing := engine.routes.failing_resolvers():
        found.append(
            Trouble(
                "A resolver does not answer.", tuple(failing) if for_operator else (),
                "Addresses may be unknown for it; the operator should check the network.",
                *(_seen_by_operator("resolvers") if for_operator else ()),
            )
        )  # fmt: skip
    return found


def _seen_by_operator(section: str) -> tuple[str, str]:
    """The section of the operator's page, and what to call it."""
    return f"{OPERATOR}#{section}", f"See the {section}"


def _of_lists(lists: list[ListResponse]) -> list[Trouble]:
    """Lists that stopped by themselves."""
    return [
        Trouble(
            f"The list {each.name} is paused: {CAUSES[each.cause]}.",
            url=f"{LISTS_PAGE}/{each.list_id}",
            link="Open the list",
        )
        for each in lists
        if each.status == "paused" and each.cause in CAUSES
    ][:SHOWN_MAX]


async def _of_callbacks(service: Service, account_id: str) -> list[Trouble]:
    delivering = await service.store.jobs(
        account_id=account_id, state="delivering", limit=JOBS_SEEN
    )
    failed = [job for job in delivering if job.tries]
    if not failed:
        return []
    hosts = sorted({job.host.partition(" ")[2] or job.host for job in failed})
    noun = "callback fails" if len(failed) == 1 else "callbacks fail"
    return [
        Trouble(
            f"{len(failed):,} {noun}.", tuple(hosts[:SHOWN_MAX]),
            "Each is repeated by itself, and can be sent again.", *_seen_at(failed, hosts),
        )
    ]  # fmt: skip


def _seen_at(failed: Sequence[Job], hosts: Sequence[str]) -> tuple[str, str]:
    """The page of the failing job, or of those jobs, and what to call it."""
    if len(failed) == 1:
        return f"{HOME}/jobs/{failed[0].id}", "Open the job"
    query = {"state": "delivering", **({"receiver": hosts[0]} if len(hosts) == 1 else {})}
    return f"{HOME}/jobs?{urlencode(query)}", "See the jobs"
