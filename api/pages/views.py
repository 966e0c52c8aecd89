"""The routes of the documentation: `/docs`, its search, `/llms.txt`, `/about-probes`, the scripts of forms.

They need no key, and ask nothing of the store but for readers who are signed in to the dashboard. A
browser may load nothing from elsewhere, run no script but ours, and send no form to another host
(Content-Security-Policy). Each page is put together once for all who are not signed in, and searches
run in another thread, so no API request waits for them.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

import trio
from msgspec import Struct, field
from quart import Blueprint, Response, render_template, request
from werkzeug.exceptions import NotFound

from ..forms.origins import origin_of
from ..forms.script import integrity, script_name, script_tag, script_text, scripts
from ..keys import PUBLISHABLE, well_formed
from . import about_probes, documents
from .dashboard.assets import assets
from .examples import KEY_MARK, Places, SignedInReader
from .icons import icon, mark
from .page import PageLink, PageSection, RenderedPage
from .reference import inline, operations_in
from .search import (
    QUERY_CHARACTERS_MAX,
    Searches,
    SearchIndex,
    SearchTooLong,
    TooManySearches,
)

HOME = documents.ROOT
REFERENCE = f"{HOME}/reference"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "font-src 'self'; base-uri 'none'; frame-ancestors 'none'; script-src 'self'",
    "Referrer-Policy": "same-origin",  # with none, the form of a test key has the Origin "null"
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "max-age=300",
    "Vary": "Cookie",
}
SHOWS_A_KEY = {"Cache-Control": "no-store"}
SCRIPT = "/form.js"
# A public file, the same for everybody: a page of any site may load and pin it. This is not the
# route that it calls, which answers pages of a key's origins alone.
FOR_ANY_PAGE = {
    "Access-Control-Allow-Origin": "*",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
NEVER_CHANGES = {"Cache-Control": "public, max-age=31536000, immutable"}
FORM_EXAMPLE = f"{HOME}/forms/example"
FORM_EXAMPLE_TITLE = "A form, live"
# The one page whose script asks the service: its own form's.
RUNS_A_FORM = {
    "Content-Security-Policy": f"{HEADERS['Content-Security-Policy']}; connect-src 'self'",
    **SHOWS_A_KEY,
}
MISSING = ""  # among the rendered pages: no path
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
SECTION_LEVELS = (2, 3)  # shown beside a page
STATIC = {"docs.js": "text/javascript"}


async def no_reader() -> SignedInReader | None:
    return None


class Documentation(Struct, frozen=True):
    """What the pages are made from, and those that are rendered already.

    `describe` returns the OpenAPI description in JSON, `about` the Markdown of the page about our
    probes; `reader_of` who is signed in and asks for the page.
    """

    describe: Callable[[], bytes]
    about: Callable[[], str]
    places: Places
    reader_of: Callable[[], Awaitable[SignedInReader | None]] = no_reader
    rendered: dict[str, str] = field(default_factory=dict)  # by path
    one_at_a_time: trio.Lock = field(default_factory=trio.Lock)

    async def once(
        self, template: str, values: Callable[[], Awaitable[Mapping[str, object]]]
    ) -> Response:
        """The page at this path, rendered at its first request."""
        if request.path not in self.rendered:
            async with self.one_at_a_time:
                if request.path not in self.rendered:
                    self.rendered[request.path] = await _html(template, **await values())
        return _text(self.rendered[request.path], "text/html")

    async def document(self, name: str) -> Response:
        found = documents.document(name)
        if found is None:
            if MISSING not in self.rendered:
                self.rendered[MISSING] = await _html("missing.html", title="Not found")
            return _text(self.rendered[MISSING], "text/html", 404)
        if (reader := await self.reader_of()) is not None:
            values = _values_of(name, found, self.places, reader.key)
            html = await _html("document.html", reader=reader, **values)
            return _text(html, "text/html", more=SHOWS_A_KEY)

        async def values_for_all() -> Mapping[str, object]:
            return _values_of(name, found, self.places)

        return await self.once("document.html", values_for_all)


def pages_blueprint(docs: Documentation) -> Blueprint:
    """Make the routes."""
    pages = Blueprint("pages", __name__, template_folder="templates")
    for drawn in (icon, mark):
        pages.add_app_template_global(drawn)
    _add_documents(pages, docs)
    _add_about_probes(pages, docs)
    _add_form(pages, docs.places)

    @pages.route("/", methods=METHODS, provide_automatic_options=False)
    async def root() -> Response:
        """Send a browser to the documentation; for a client of the API there is nothing here."""
        wanted = request.accept_mimetypes.best_match(["application/json", "text/html"])
        if request.method != "GET" or wanted != "text/html":
            raise NotFound
        return Response(b"", 302, headers={**HEADERS, "Location": HOME})

    @pages.get(f"{HOME}/static/<name>")
    async def static_file(name: str) -> Response:
        if name not in STATIC:
            raise NotFound
        return _text(static_text(name), STATIC[name])

    @pages.get("/llms.txt")
    async def llms() -> Response:
        return _text(llms_text(), "text/plain")

    return pages


def _add_documents(pages: Blueprint, docs: Documentation) -> None:
    searches = Searches(_index)

    @pages.get(HOME)
    @pages.get(f"{HOME}/")
    async def home() -> Response:
        return await docs.document(documents.HOME)

    @pages.get(f"{HOME}/<path:name>")
    async def page(name: str) -> Response:
        if name.endswith(".md"):
            return _markdown(name.removesuffix(".md"))
        return await docs.document(name)

    @pages.get(REFERENCE)
    async def api_reference() -> Response:
        async def values() -> Mapping[str, object]:
            operations = operations_in(json.loads(docs.describe()))
            sections = [PageSection(2, each.summary, each.name, "") for each in operations]
            return {"title": "API reference", "sections": sections, "operations": operations}

        return await docs.once("reference.html", values)

    @pages.get(f"{HOME}/search")
    async def search() -> Response:
        query = request.args.get("q", "").strip()[:QUERY_CHARACTERS_MAX]
        try:
            results = await searches.search(query)
        except TooManySearches:
            return _text("Too many searches at this moment; try again.\n", "text/plain", 503)
        except SearchTooLong:
            return _text("This search takes too long; write other words.\n", "text/plain", 503)
        return _text(
            await _html("search.html", title="Search", query=query, results=results), "text/html"
        )


def _add_about_probes(pages: Blueprint, docs: Documentation) -> None:
    @pages.get(about_probes.URL)
    async def for_administrators() -> Response:
        async def values() -> Mapping[str, object]:
            return _values_of_about(await documents.rendered_apart(docs.about()))

        return await docs.once("document.html", values)

    @pages.get(f"{about_probes.URL}.md")
    async def for_administrators_as_markdown() -> Response:
        return _text(docs.about(), "text/markdown")


def _add_form(pages: Blueprint, places: Places) -> None:
    @pages.get(SCRIPT)
    async def form_script() -> Response:
        return _text(script_text(), "text/javascript", more=FOR_ANY_PAGE)

    @pages.get("/form.<digest>.js")
    async def named_form_script(digest: str) -> Response:
        """A script by its hash: the current one, or an earlier release's that pages have pinned."""
        text = scripts().get(f"form.{digest}.js")
        if text is None:
            raise NotFound
        return _text(text, "text/javascript", more={**FOR_ANY_PAGE, **NEVER_CHANGES})

    @pages.get(FORM_EXAMPLE)
    async def form_example() -> Response:
        key = request.args.get("key", "").strip()
        is_usable = well_formed(key) and key.startswith(PUBLISHABLE)
        html = await _html(
            "form_example.html", title=FORM_EXAMPLE_TITLE, key=key if is_usable else "",
            refused=bool(key) and not is_usable, integrity=integrity(), origin=origin_of(places.base_url),
            script_url=f"/{script_name(script_text())}", tag=script_tag(places.base_url, key if is_usable else "pk_live_…"),
        )  # fmt: skip
        return _text(html, "text/html", more=RUNS_A_FORM)


def llms_text() -> str:
    """The list of pages for language models (llmstxt.org)."""
    lines = [
        "# mailprobe",
        "",
        "> Self-hosted, streaming-first email verification: HTTP API, tools, lists.",
    ]
    for group, pages in documents.contents().items():
        lines += ["", f"## {group}", ""]
        lines += [f"- [{title}](/docs/{name}.md)" for name, title in pages]
    return "\n".join([*lines, "", "## Reference", "", "- [OpenAPI description](/openapi.json)", ""])


@cache
def _index() -> SearchIndex:
    """The index of this process, open as long as it runs: the documents never change."""
    return SearchIndex(documents.INDEX_FILE)


def _values_of(
    name: str, found: documents.Document, places: Places, key: str = ""
) -> Mapping[str, object]:
    """What the template of a document shows."""
    with_key = found.html_with_key if key else None
    html = places.fill(found.html if with_key is None else with_key.replace(KEY_MARK, key))
    heading, end, text = html.partition("</h1>\n")
    return {
        "name": name,
        "title": found.page.title,
        "heading": heading + end,
        "html": text,
        "sections": [each for each in found.sections if each.level in SECTION_LEVELS],
        "markdown_url": f"/docs/{name}.md",
        "takes_key": found.html_with_key is not None,
    }


def _values_of_about(page: RenderedPage) -> Mapping[str, object]:
    return {
        "title": page.title or about_probes.TITLE,
        "html": page.html,
        "sections": [each for each in page.sections if each.level in SECTION_LEVELS],
        "markdown_url": f"{about_probes.URL}.md",
    }


def _markdown(name: str) -> Response:
    if name not in documents.names():
        return _text(f"There is no page {name!r}.\n", "text/plain", 404)
    return _text(documents.markdown_of(name), "text/markdown")


async def _html(template: str, /, **values: object) -> str:
    """Return a page with the navigation around it."""
    groups = {
        group: [PageLink(documents.url_of(name), title) for name, title in pages]
        for group, pages in documents.contents().items()
    }
    groups["Use"].insert(1, PageLink(REFERENCE, "API reference"))
    groups["Use"].insert(3, PageLink(FORM_EXAMPLE, FORM_EXAMPLE_TITLE))
    groups["Run"].append(PageLink(about_probes.URL, about_probes.TITLE))
    pages = [page for group in groups.values() for page in group]
    urls = [page.url for page in pages]
    here = urls.index(request.path) if request.path in urls else None
    return await render_template(
        template, groups=groups, current=request.path, inline=inline, assets=assets(),
        before=pages[here - 1] if here else None,
        after=pages[here + 1] if here is not None and here + 1 < len(pages) else None,
        **{"query": "", "reader": None, **values},
    )  # fmt: skip


def _text(
    text: str, media_type: str, status: int = 200, *, more: Mapping[str, str] | None = None
) -> Response:
    """An answer that a browser may keep; unchanged since, it is a 304 (RFC 9110 13.1.2)."""
    tag = sha256(text.encode()).hexdigest()[:32]
    headers = {**HEADERS, **(more or {}), "ETag": f'"{tag}"'}
    if status == 200 and request.if_none_match.contains(tag):
        return Response(b"", 304, headers=headers)
    return Response(text, status, headers=headers, content_type=f"{media_type}; charset=utf-8")


@cache
def static_text(name: str) -> str:
    return (Path(__file__).parent / "static" / name).read_text("utf-8")
