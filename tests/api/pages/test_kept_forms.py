"""Every form with a wrong value shows it again: nobody types it twice.

The forms are found in the pages, so a new one is tried too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from html.parser import HTMLParser

from tests.api.lists.test_lists import open_list_shop, send
from tests.api.pages.test_dashboard import HOME, PAGES, PageClient, open_empty_shop, signed_in
from tests.api.service_fixture import RunningService

WRONG = "☃ <b> " + "x" * 400  # no address, no number, no URL, and too long for a name
TYPED = ("text", "email", "number", "url")  # a secret, such as a key, is not written into a page
# A field that is of one choice of the form only, and that choice.
OF_A_CHOICE = {"origins": {"kind": "pk_live_"}, "rate": {"kind": "pk_live_"}}


@dataclass
class FoundForm:
    """A form as a browser would send it unchanged, and the fields in which a person types."""

    action: str
    values: dict[str, str] = field(default_factory=dict)
    typed: list[str] = field(default_factory=list)


class FormFinder(HTMLParser):
    """The forms of a page that post."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[FoundForm] = []
        self._form: FoundForm | None = None
        self._select: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._form = FoundForm(has.get("action", "")) if has.get("method") == "post" else None
            if self._form is not None:
                self.forms.append(self._form)
            return
        name, form = has.get("name", ""), self._form
        if form is None:
            return
        if tag == "option" and self._select is not None:
            if "selected" in has or self._select not in form.values:
                form.values[self._select] = has.get("value", "")
        elif tag == "select":
            self._select = name
        elif tag == "textarea":
            form.typed.append(name)
        elif tag == "input" and name:
            kind = has.get("type", "text")
            if kind in TYPED:
                form.typed.append(name)
            if kind not in ("checkbox", "radio", "file") or "checked" in has:
                form.values[name] = has.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "select":
            self._select = None


def forms_in(page: bytes) -> Iterator[FoundForm]:
    finder = FormFinder()
    finder.feed(page.decode())
    return iter(finder.forms)


async def tried(visitor: PageClient, path: str) -> list[str]:
    """Send each form of a page with a wrong value in each field; return what was tried."""
    names = []
    for form in forms_in((await visitor.get(path)).octets):
        if form.action == f"{HOME}/lists":
            continue  # a browser keeps no file
        for name in form.typed:
            got = await visitor.post(
                form.action.removeprefix(HOME),
                {**form.values, **OF_A_CHOICE.get(name, {}), name: WRONG},
            )
            what = f"{form.action} {name}"
            names.append(what)
            assert got.status in (200, 400, 422), (what, got.status)
            assert escape(WRONG, quote=False) in got.octets.decode().replace("&#34;", '"'), what
    return names


async def paused_list(shop: RunningService) -> str:
    made = await send(shop, "email\nann@friendly.test\n", query="?start=0")
    return f"/lists/{made.body['list_id']}"


async def test_every_form_with_a_wrong_value_keeps_it() -> None:
    """In real time: a list is read again in a thread."""
    async with open_list_shop(operators=frozenset({"ann@example.org"})) as shop:
        visitor = await signed_in(shop)
        found = []
        for path in (*PAGES, await paused_list(shop)):
            found += await tried(visitor, path)
    assert len(found) >= 6
    async with open_empty_shop() as (shop, _, token):
        assert await tried(PageClient(shop), f"/welcome?token={token}")
