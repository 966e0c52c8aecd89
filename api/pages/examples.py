"""The reader's values in the examples of the documentation: the service's URLs, and a test key.

The pages in `docs/` name a service on this machine and variables of a shell. What is served is
ready to paste. Pure.
"""

import re
from dataclasses import dataclass

# What stands in the pages.
LOCAL_URL, LOCAL_TOOLS_URL = "http://127.0.0.1:8080", "http://127.0.0.1:8081"
_URL, _TOOLS_URL = re.compile(r"\$BASE_URL\b"), re.compile(r"\$TOOLS_URL\b")
# Not the key in an answer that makes one.
_KEY = re.compile(
    r"""\$KEY\b|(?:(?<=Bearer )|(?<=\bKEY=)|(?<=MAILPROBE_KEY": "))sk_(?:live|test)_…""", re.ASCII
)
# Stands for a key while a page is rendered, which is once for all readers.
KEY_MARK = "sk_test_" + "0" * 49


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

    def fill(self, code: str) -> str:
        """A block of code with the service's URLs."""
        code = _URL.sub(LOCAL_URL, code).replace(LOCAL_URL, self.base_url)
        if not self.tools_url:
            return code
        return _TOOLS_URL.sub(LOCAL_TOOLS_URL, code).replace(LOCAL_TOOLS_URL, self.tools_url)

    def fill_all(self, code: str) -> str:
        """The same with KEY_MARK for a key."""
        return _KEY.sub(KEY_MARK, self.fill(code))


def takes_key(code: str) -> bool:
    return _KEY.search(code) is not None
