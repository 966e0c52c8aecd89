"""Markdown to HTML: a page's headings with anchors, links between pages, coloured code to copy.

Blocks of code in different languages that follow each other are tabs: the same in each language.
The anchors are those that GitHub makes from the same headings, so a link works in the checkout
and in the browser. Raw HTML in a page is shown, not run. Pure.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import groupby

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from .page import PageLink, PageSection, RenderedPage

_PUNCTUATION = re.compile(r"[^\w\- ]", re.UNICODE)
# The tab of a block, by its language.
TABS = {"sh": "curl", "console": "curl", "python": "Python", "js": "Node", "go": "Go", "php": "PHP"}
_EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


FindLink = Callable[[str], PageLink | None]
FillCode = Callable[[str], str]


def render(markdown: str, link: FindLink, fill: FillCode = str) -> RenderedPage:
    """Render a page. `link` finds the page of a relative target; None: only the link's text stays.

    `fill` puts the reader's values into a block of code. Each block has a button that copies it.
    """
    parser = _parser()
    tokens = parser.parse(markdown)
    sections = _sections(tokens)
    for token in tokens:
        _relink(token, link)
    html = parser.renderer.render(_with_tabs(tokens), parser.options, {"fill": fill})
    return RenderedPage(html, sections)


def anchor_of(title: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return _PUNCTUATION.sub("", title.strip().lower()).replace(" ", "-")


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "highlight": _coloured}).enable("table")
    for kind, rule in RULES.items():
        parser.add_render_rule(kind, rule)
    return parser


def _fence(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    number = env["blocks"] = env.get("blocks", 0) + 1
    token = tokens[index]
    block = token.copy(content=env["fill"](token.content), attrs={"id": f"code-{number}"})
    return (
        f'<div class="code"><button type="button" data-copy="code-{number}"'
        f' aria-label="Copy block {number}">Copy</button>'
        f"{RendererHTML.fence(renderer, [block], 0, options, env)}</div>\n"
    )


def _with_tabs(tokens: Sequence[Token]) -> list[Token]:
    """The tokens, with `tabs_open` and `tabs_close` around blocks that are tabs."""
    found: list[Token] = []
    for has_tab, run in groupby(tokens, lambda token: token.type == "fence" and token.info in TABS):
        blocks = list(run)
        labels = [TABS[block.info] for block in blocks] if has_tab else []
        if len(labels) > 1 and len(set(labels)) == len(labels):
            opening = Token("tabs_open", "div", 1, meta={"labels": labels})
            blocks = [opening, *blocks, Token("tabs_close", "div", -1)]
        found += blocks
    return found


def _tabs_open(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """Radio buttons, so that tabs work by keyboard and without a script."""
    number = env.get("blocks", 0) + 1
    tabs = "".join(
        f'<input type="radio" name="tabs-{number}" id="tab-{number}-{place}"'
        f"{' checked' if place == 1 else ''}>"
        f'<label for="tab-{number}-{place}">{label}</label>'
        for place, label in enumerate(tokens[index].meta["labels"], 1)
    )
    return f'<div class="languages" role="radiogroup" aria-label="Language">{tabs}\n'


def _tabs_close(*_: object) -> str:
    return "</div>\n"


def _table_open(*_: object) -> str:
    return '<div class="wide"><table>\n'


def _table_close(*_: object) -> str:
    return "</table></div>\n"


RULES: Mapping[str, Callable[..., str]] = {
    "fence": _fence,
    "tabs_open": _tabs_open,
    "tabs_close": _tabs_close,
    "table_open": _table_open,
    "table_close": _table_close,
}


def _sections(tokens: Sequence[Token]) -> list[PageSection]:
    """Give each heading its anchor, and return the sections."""
    found: list[tuple[Token, str, list[str]]] = []
    seen: Counter[str] = Counter()
    anchors: list[str] = []
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            title = _text_of(tokens[index + 1])
            anchor = anchor_of(title)
            seen[anchor] += 1
            if seen[anchor] > 1:
                anchor = f"{anchor}-{seen[anchor] - 1}"
            token.attrSet("id", anchor)
            anchors.append(anchor)
            found.append((token, title, []))
        elif found and tokens[index - 1] is not found[-1][0]:
            if token.type == "inline":
                found[-1][2].append(_text_of(token))
            elif token.type in ("fence", "code_block"):
                found[-1][2].append(token.content)
    return [
        PageSection(int(token.tag[1]), title, anchor, " ".join(" ".join(texts).split()))
        for (token, title, texts), anchor in zip(found, anchors, strict=True)
    ]


def _text_of(inline: Token) -> str:
    parts = (
        " " if child.type.endswith("break") else child.content for child in inline.children or ()
    )
    return "".join(parts)  # fmt: skip


def _relink(token: Token, link: FindLink) -> None:
    """Point the links of an inline token to the served pages; a file's name becomes its title."""
    children = token.children or []
    for index, child in enumerate(children):
        if child.type != "link_open":
            continue
        target = str(child.attrGet("href") or "")
        if target.startswith("#"):
            continue
        if _EXTERNAL.match(target):
            child.attrSet("rel", "noreferrer")
            continue
        found = link(target)
        text, closing = children[index + 1], _closing(children, index)
        if found is None:
            child.attrs.clear()
            child.tag = closing.tag = "span"
        else:
            child.attrSet("href", found.url)
            if text.content == target.partition("#")[0]:
                text.content = found.title


def _closing(children: Sequence[Token], opening: int) -> Token:
    return next(each for each in children[opening:] if each.type == "link_close")


def _coloured(code: str, language: str, _: str) -> str:
    """Colour a block of code by classes; a language that is not known stays as it is."""
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return ""
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))
