"""The pages of jobs and their callbacks: filtered, one with all it sends, sent again, tested."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

import msgspec
from quart import Blueprint, Response, request

from mailprobe.storage.contract import ID_PREFIX_MIN
from mailprobe.storage.records import Job, JobState

from ....jobs.rules import NotAWebhook, callback_headers
from ....operations.jobs import JobResponse, send_test_callback
from ....operations.verify import SECRET_CHARACTERS_MAX, SECRET_CHARACTERS_MIN
from ....quota.charge import TRIALS_A_MINUTE
from ....refusals import JobNotFound, RateLimited
from ....results.advice import answer_of
from ..frame import (
    HEADERS,
    HOME,
    NOTHING_TYPED,
    Frame,
    away,
    caller,
    form_fields,
)

JOBS_PAGE = f"{HOME}/jobs"
JOBS_SHOWN = 50
TYPED_MAX = 300  # characters of a filter; a host name has 253
STATES: Mapping[JobState, str] = {
    "pending": "Verifying",
    "delivering": "Calling back",
    "done": "Done",
    "failed": "Failed",
}
HIDDEN = "…"  # a signature is the receiver's to check, and is made anew at each attempt
BAD_SECRET = f"A secret has {SECRET_CHARACTERS_MIN} to {SECRET_CHARACTERS_MAX} characters."
TOO_MANY = f"There were {TRIALS_A_MINUTE} tests within a minute: wait a minute, then send it again."


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs are listed, as the page's address has it."""

    state: JobState | None
    receiver: str | None
    before: str | None  # the id of a job: those created before it

    def url(self, before: str = "") -> str:
        """The query of the same filter, from another place on."""
        values = {"state": self.state, "receiver": self.receiver, "before": before}
        return urlencode({name: value for name, value in values.items() if value})


def filter_of(arguments: Mapping[str, str]) -> JobFilter:
    """Read the filter of an address; what cannot be one filters nothing."""

    def typed(name: str) -> str | None:
        return arguments.get(name, "").strip()[:TYPED_MAX] or None

    state = next((each for each in STATES if each == typed("state")), None)
    return JobFilter(state, typed("receiver"), typed("before"))


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""
    _register_jobs(pages, frame)
    _register_job(pages, frame)


def _register_jobs(pages: Blueprint, frame: Frame) -> None:
    @pages.get(JOBS_PAGE)
    @frame.signed_in
    async def show_jobs() -> Response:
        wanted = request.args.get("id", "").strip()[:TYPED_MAX]
        if not wanted:
            return await listed()
        found = await frame.service.store.jobs(
            account_id=caller().account.id, prefix=wanted, limit=JOBS_SHOWN
        )
        if len(found) == 1:
            return away(f"{JOBS_PAGE}/{found[0].id}")
        return await listed(200 if found else 404, wanted=wanted, found=found)

    @pages.post(f"{JOBS_PAGE}/test")
    @frame.signed_in
    async def try_callback() -> Response:
        form = await form_fields()
        webhook, secret = form.get("webhook", "").strip(), form.get("secret", "")
        if secret and not SECRET_CHARACTERS_MIN <= len(secret) <= SECRET_CHARACTERS_MAX:
            return await listed(400, typed=form, errors={"secret": BAD_SECRET})
        try:
            job_id = await send_test_callback(frame.service, caller(), webhook, secret or None)
        except NotAWebhook as error:
            why = f"No callback can go there: {error}."
            return await listed(400, typed=form, errors={"webhook": why})
        except RateLimited:
            return await listed(429, typed=form, errors={"webhook": TOO_MANY})
        return away(f"{JOBS_PAGE}/{job_id}")

    async def listed(
        status: int = 200,
        *,
        wanted: str = "",
        found: Sequence[Job] = (),
        typed: Mapping[str, str] = NOTHING_TYPED,
        errors: Mapping[str, str] = NOTHING_TYPED,
    ) -> Response:
        """The jobs, or those that were found, and the form of a test callback with what was typed."""
        account_id, store, query = caller().account.id, frame.service.store, filter_of(request.args)
        jobs = found or await store.jobs(
            account_id=account_id,
            state=query.state,
            host=f"{account_id} {query.receiver}" if query.receiver else None,
            before=query.before,
            limit=JOBS_SHOWN + 1,
        )
        more = query.url(jobs[JOBS_SHOWN - 1].id) if len(jobs) > JOBS_SHOWN else ""
        known = next((job.webhook for job in jobs if job.webhook), "")
        return await frame.page(
            "jobs.html", "Jobs", status, jobs=jobs[:JOBS_SHOWN], more=more, query=query,
            receivers=[receiver_of(host) for host in await store.receivers(account_id)],
            wanted=wanted, is_missing=wanted and not found, id_characters=ID_PREFIX_MIN, errors=errors, typed={"webhook": known, **typed}, states=STATES,
            receiver_of=lambda job: receiver_of(job.host) if job.webhook else "",
            calls_back=frame.service.jobs is not None,
        )  # fmt: skip


def _register_job(pages: Blueprint, frame: Frame) -> None:
    @pages.get(f"{JOBS_PAGE}/<id>")
    @frame.signed_in
    async def show_job(id: str) -> Response:
        return await frame.page("job.html", "Job", **await values(id))

    @pages.get(f"{JOBS_PAGE}/<id>/progress")
    @frame.signed_in
    async def job_progress(id: str) -> Response:
        """The state and the attempts; the job's page fetches them until it has ended."""
        found = await values(id)
        if request.args.get("shows") == "0" and found["body"]:  # the page has no body yet
            return Response(b"", headers={**HEADERS, "HX-Refresh": "true"})
        return await frame.page("job_progress.html", "Job", **found)

    @pages.post(f"{JOBS_PAGE}/<id>/resend")
    @frame.signed_in
    async def resend(id: str) -> Response:
        await frame.perform("get_job", id=id)  # of another account: not found
        if await frame.service.store.resend_job(id.lower()) is None:
            raise JobNotFound
        if frame.service.jobs is not None:
            frame.service.jobs.wake()
        return away(f"{JOBS_PAGE}/{id}")

    async def values(id: str) -> dict[str, object]:
        """What the page of a job shows. Raises JobNotFound."""
        found = await frame.result_of(JobResponse, "get_job", id=id)
        job = await frame.service.store.job(found.job_id)
        if job is None:
            raise JobNotFound
        body = "" if not job.payload else msgspec.json.format(job.payload, indent=2).decode()
        return {
            "job": job, "attempts": found.attempts, "result": found.result,
            "answer": found.result and answer_of(found.result), "body": body,
            "next_attempt_at": found.next_attempt_at, "states": STATES,
            "headers": headers_of(job, found), "receiver": receiver_of(job.host),
        }  # fmt: skip


def receiver_of(host: str) -> str:
    """The host and the port of a receiver, without the account that they are stored with."""
    return host.partition(" ")[2] or host


def headers_of(job: Job, found: JobResponse) -> str:
    """The headers of the last attempt, or of the next one, without signatures."""
    at = found.attempts[-1].at if found.attempts else job.due_at or job.created_at
    secret = HIDDEN if job.is_signed else None
    sent = callback_headers(job.id, b"", secret, at)
    hidden = {
        name: value.partition("=")[0] + f"={HIDDEN}" if name == "X-Service-Signature" else value
        for name, value in sent.items()
    }
    if "webhook-signature" in hidden:
        hidden["webhook-signature"] = f"v1,{HIDDEN}"
    return "\n".join(f"{name}: {value}" for name, value in hidden.items())
