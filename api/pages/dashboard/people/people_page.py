"""The page of an account's people: who may sign in, by which role, and who is signed in now."""

from collections.abc import Mapping

from quart import Blueprint, Response, g
from werkzeug.exceptions import NotFound

from mailprobe.engine.address import NotAnAddress
from mailprobe.storage.people.links import INVITATIONS_KEPT
from mailprobe.storage.people.people import (
    PEOPLE_MAX,
    LastOwner,
    Person,
    PersonExists,
    Role,
    TooManyPeople,
)
from mailprobe.storage.people.sign_ins import ListedSignIn

from ....alerts.smtp_relay import recipient_of
from ....keys import key_hash
from ..frame import (
    HOME,
    NOTHING_TYPED,
    Frame,
    away,
    caller,
    form_fields,
)
from ..roles import MEANINGS, ROLES, may
from ..sign_ins import NO_ADDRESS, SignIn
from .sign_in_pages import new_token

PEOPLE = f"{HOME}/people"
ALREADY_THERE = "This address is there already."
TOO_MANY = f"An account has at most {PEOPLE_MAX} people. Remove one first."
LAST_OWNER = "This is the last owner. Make somebody else an owner first."
BROWSERS = ("Edg", "OPR", "Firefox", "Chrome", "Safari")  # the first that its name has
BROWSER_WORDS = {"Edg": "Edge", "OPR": "Opera"}


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""
    store = frame.service.store

    @pages.get(PEOPLE)
    @frame.signed_in
    async def people() -> Response:
        return await _shown(frame)

    @pages.post(PEOPLE)
    @frame.signed_in
    async def invite() -> Response:
        form = await form_fields()
        email, role = form.get("email", "").strip(), _role(form)
        if not _can_sign_in(frame):
            raise NotFound
        if not _may_invite(frame):
            return await too_many()
        try:
            recipient_of(email)
            by = frame.actor(caller())
            person = await store.invite_person(caller().account.id, email, role, by=by)
        except (NotAnAddress, PersonExists, TooManyPeople) as error:
            return await _shown(frame, 400, form, error=ERRORS[type(error)])
        return await _mail_invitation(frame, person) or away(PEOPLE)

    @pages.post(f"{PEOPLE}/<id>/invite")
    @frame.signed_in
    async def invite_again(id: str) -> Response:
        if not _may_invite(frame):
            return await too_many()
        return await _mail_invitation(frame, await _person(frame, id)) or away(PEOPLE)

    @pages.post(f"{PEOPLE}/<id>/role")
    @frame.signed_in
    async def set_role(id: str) -> Response:
        role, by = _role(await form_fields()), frame.actor(caller())
        try:
            is_there = await store.change_role(caller().account.id, id, role, by=by)
        except LastOwner:
            return await _shown(frame, 409, error=LAST_OWNER)
        if not is_there:
            raise NotFound
        return away(PEOPLE)

    @pages.post(f"{PEOPLE}/<id>/remove")
    @frame.signed_in
    async def remove(id: str) -> Response:
        try:
            await store.remove_person(caller().account.id, id, by=frame.actor(caller()))
        except LastOwner:
            return await _shown(frame, 409, error=LAST_OWNER)
        return away(PEOPLE)

    @pages.post(f"{PEOPLE}/sign-ins/<id>/end")
    @frame.signed_in
    async def end(id: str) -> Response:
        await store.end_listed_sign_in(id, caller().account.id, frame.actor(caller()))
        return away(PEOPLE)

    async def too_many() -> Response:
        return await frame.error(
            429, "There were too many invitations.", "Wait a minute, then try again."
        )


def _may_invite(frame: Frame) -> bool:
    """Count an invitation: nobody is to be flooded with mails."""
    return frame.sign_in_limit.try_enter(frame.visitor(), f"invitations {caller().account.id}")


ERRORS: Mapping[type[Exception], str] = {
    NotAnAddress: NO_ADDRESS, PersonExists: ALREADY_THERE, TooManyPeople: TOO_MANY,
}  # fmt: skip


def _role(form: Mapping[str, str]) -> Role:
    """Return the role that the form names; a viewer's if it names no known one."""
    return next((each for each in ROLES if each == form.get("role")), ROLES[0])


def _can_sign_in(frame: Frame) -> bool:
    """Whether people have a way to sign in here."""
    return frame.service.sign_in_mails is not None or frame.service.openid is not None


async def _person(frame: Frame, id: str) -> Person:
    people = await frame.service.store.people(caller().account.id)
    found = next((each for each in people if each.id == id), None)
    if found is None:
        raise NotFound
    return found


async def _mail_invitation(frame: Frame, person: Person) -> Response | None:
    """Mail it; the page that refuses it, or None."""
    mails = frame.service.sign_in_mails
    if mails is None:
        return None
    if not frame.invitation_limit.try_enter("", person.email):
        return await frame.error(
            429,
            f"No mail was sent: {person.email} was invited too often today.",
            "The person can ask for a link on the page of the sign-in.",
        )
    token = new_token()
    if await frame.service.store.add_invitation(key_hash(token), person.id):
        sign_in: SignIn = g.sign_in
        until = frame.service.now() + INVITATIONS_KEPT
        mails.send_invitation(person.email, token, until, person.role, sign_in.email)
    return None


async def _shown(
    frame: Frame,
    status: int = 200,
    form: Mapping[str, str] = NOTHING_TYPED,
    *,
    error: str | None = None,
) -> Response:
    sign_in: SignIn = g.sign_in
    account_id, store = caller().account.id, frame.service.store
    listed = await store.listed_sign_ins(account_id)
    if not may(sign_in.role, f"POST {PEOPLE}/sign-ins/<id>/end"):  # only an owner sees others'
        listed = [each for each in listed if each.email == sign_in.email]
    return await frame.page(
        "people.html", "People", status, people=await store.people(account_id),
        listed=[(each, browser_of(each)) for each in listed], typed=form, error=error, roles=ROLES,
        meanings=MEANINGS, can_sign_in=_can_sign_in(frame),
        mails=frame.service.sign_in_mails is not None,
    )  # fmt: skip


def browser_of(sign_in: ListedSignIn) -> str:
    """A word for the browser of a sign-in."""
    found = next((each for each in BROWSERS if f"{each}/" in sign_in.browser), "")
    return BROWSER_WORDS.get(found, found) or "A program"
