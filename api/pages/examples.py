"""The reader's values in the examples of the documentation: the service's URLs, and a test key.

The pages in `docs/` name a service on this machine and variables of a shell. When they are rendered,
marks take their places in blocks of code. When they are served, values take the places of the marks,
so what a reader sees is ready to paste. Pure, and needs no other package.
"""

import re
from dataclasses import dataclass
from html import escape

# What is in the pages, and the marks in its place: words that no highlighter divides.
LOCAL_URL, LOCAL_TOOLS_URL = "http://127.0.0.1:8080", "http://127.0.0.1:8081"
TOOLS_VARIABLE = "$TOOLS_URL"
_URL, _TOOLS_URL = re.compile(r"\$BASE_URL\b"), re.compile(r"\$TOOLS_URL\b")
URL_MARK, TOOLS_MARK, TOOLS_VARIABLE_MARK = "zzServiceUrl", "zzToolsUrl", "zzToolsVariable"
# Not the key in an answer that makes one.
_KEY = re.compile(
    r"""\$KEY\b|(?:(?<=Bearer )|(?<=\bKEY=)|(?<=MAILPROBE_KEY": "))sk_(?:live|test)_…""", re.ASCII
)
KEY_MARK = "sk_test_" + "0" * 49
MARKS = (URL_MARK, TOOLS_MARK, TOOLS_VARIABLE_MARK, KEY_MARK)


@dataclass(frozen=True, slots=True)
class SignedInReader:
    """Who is signed in to the dashboard and reads the documentation."""

    csrf: str
    key: str  # a test key for the examples; empty: none yet
    takes_test_keys: bool


@dataclass(frozen=True, slots=True)
class Places:
    """Where the service is for its clients."""

    base_url: str
    tools_url: str  # empty: there is no tool server

    def fill(self, html: str) -> str:
        """HTML with the service's URLs in place of their marks. Without a tool server its examples stay."""
        return (
            html.replace(URL_MARK, escape(self.base_url))
            .replace(TOOLS_MARK, escape(self.tools_url or LOCAL_TOOLS_URL))
            .replace(TOOLS_VARIABLE_MARK, escape(self.tools_url or TOOLS_VARIABLE))
        )


def marked(code: str) -> str:
    """A block of code with marks for the service's URLs."""
    code = _URL.sub(URL_MARK, code).replace(LOCAL_URL, URL_MARK)
    return _TOOLS_URL.sub(TOOLS_VARIABLE_MARK, code).replace(LOCAL_TOOLS_URL, TOOLS_MARK)


def marked_with_key(code: str) -> str:
    """The same with KEY_MARK for a key."""
    return _KEY.sub(KEY_MARK, marked(code))


def takes_key(code: str) -> bool:
    return _KEY.search(code) is not None
