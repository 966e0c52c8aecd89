"""The page of limits: the account's spending caps, and the mails about them."""

from collections.abc import Mapping

from quart import Blueprint, Response, request

from mailprobe.storage.records import Account

from ...alerts.thresholds import TEST
from ...quota.plans import MICROS_PER_EUR, micros_of
from .frame import LIMITS_PAGE, Frame, away, caller, form_fields, is_operator

CAPS = ("soft", "hard")
# Of an account, the newest: it has at most ten in a period, and a test mail a minute.
ALERTS_SEEN = 20


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""

    @pages.get(LIMITS_PAGE)
    @frame.signed_in
    async def caps() -> Response:
        account, saved = caller().account, request.args.get("saved") == "1"
        return await _shown_caps(frame, _typed_of(account), account.alerts, saved=saved)

    @pages.post(LIMITS_PAGE)
    @frame.signed_in
    async def set_caps() -> Response:
        form = await form_fields()
        typed = {name: form.get(name, "").strip() for name in CAPS}
        alerts = form.get("alerts") == "on"
        micros, errors = caps_of(typed)
        if errors:
            return await _shown_caps(frame, typed, alerts, 400, errors=errors)
        changed = await frame.service.store.change_account(
            caller().account.id, alerts=alerts, by=frame.actor(caller()),
            **{f"{name}_cap_micros": micros[name] for name in CAPS},
        )  # fmt: skip
        assert changed is not None
        return away(f"{LIMITS_PAGE}?saved=1")

    @pages.post(f"{LIMITS_PAGE}/test")
    @frame.signed_in
    async def send_test() -> Response:
        if _sends_to(frame, caller().account):
            assert frame.service.alerts is not None
            await frame.service.alerts.send_test(caller())
        return away(LIMITS_PAGE)

    @pages.get(f"{LIMITS_PAGE}/test")
    @frame.signed_in
    async def test_mail() -> Response:
        """How far the test mail is; its page fetches this again until it is sent."""
        return await frame.page("alert_test.html", "Limits", **await _test_values(frame))


def _sends_to(frame: Frame, account: Account) -> bool:
    """Whether alerts of this account are sent at all."""
    return account.alerts and account.tier != "own" and frame.sends_mail


async def _test_values(frame: Frame) -> dict[str, object]:
    account = caller().account
    recent = await frame.service.store.messages("alert", account_id=account.id, limit=ALERTS_SEEN)
    tests = (each for each in recent if each.name.startswith(TEST))
    return {
        "sends": _sends_to(frame, account), "test": next(tests, None), "email": account.email,
        "is_operator": is_operator(),
    }  # fmt: skip


async def _shown_caps(
    frame: Frame, typed: Mapping[str, str], alerts: bool, status: int = 200, **more: object
) -> Response:
    return await frame.page(
        "caps.html", "Limits", status, typed=typed, alerts=alerts,
        plan=frame.service.plans[caller().account.tier], has_relay=frame.sends_mail,
        **await _test_values(frame), **{"errors": {}, **more},
    )  # fmt: skip


def _typed_of(account: Account) -> dict[str, str]:
    return {"soft": euros_of(account.soft_cap_micros), "hard": euros_of(account.hard_cap_micros)}


def caps_of(typed: Mapping[str, str]) -> tuple[dict[str, int | None], dict[str, str]]:
    """The caps in micro-euros by what was typed, and what is wrong with each field."""
    micros: dict[str, int | None] = {}
    errors = {}
    for name in CAPS:
        try:
            micros[name] = _micros(typed[name])
        except ValueError as error:
            errors[name] = str(error)
    soft, hard = micros.get("soft"), micros.get("hard")
    if soft is not None and hard is not None and soft > hard:
        errors["soft"] = "The soft cap is above the hard cap, so its mail would never come."
    return micros, errors


def euros_of(micros: int | None) -> str:
    """Euros for a form; empty without a cap."""
    return "" if micros is None else f"{micros / MICROS_PER_EUR:.2f}"


def _micros(text: str) -> int | None:
    """Micro-euros of what was typed; None if it is empty. Raises ValueError with the reason."""
    text = text.strip().replace(",", ".")
    if not text:
        return None
    try:
        return micros_of(text)
    except ValueError:
        raise ValueError(f"“{text[:20]}” is not an amount in euros, such as 25 or 12.50.") from None
