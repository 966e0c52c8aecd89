"""The message of the first start, while the database has no account: how to make one."""

from mailprobe.storage import utc_now
from mailprobe.storage.store import Store

from ..pages.dashboard.sign_ins import SignIns
from ..serve import links_of
from ..settings import Settings


async def welcome_lines(store: Store, settings: Settings) -> list[str]:
    """Return the lines for standard error; none if there is an account. Raises StoreUnavailable."""
    if await store.accounts():
        return []
    links = links_of(settings)
    url = f"{links.dashboard_url}/welcome?token={SignIns(store, utc_now).welcome_token()}"
    return [
        "mailprobe: there is no account yet; make one in the browser, by this link:",
        f"  {url}",
        "mailprobe: or create one with the first of these, and try the second:",
        *(f"  {line}" for line in first_commands(settings.bind.url)),
    ]


def first_commands(url: str) -> tuple[str, str]:
    """Return the commands that come after the first start."""
    return (
        "mailprobe account create --email you@example.org --own",
        f"curl {url}/v1/email/verify -H 'Authorization: Bearer KEY'"
        """ -H 'Content-Type: application/json' -d '{"email": "you@example.org"}'""",
    )
