"""docs/settings.md has every setting, with its default."""

from mailprobe.api.settings import TABLE
from tests.docs.pages import PAGES, bare, table_of

HEADER = ("name", "default", "meaning")


def test_every_setting_is_described_with_its_default() -> None:
    rows = {bare(row[0]): row[1] for row in table_of("docs/settings.md", *HEADER)}
    assert rows.keys() == {setting.variable for setting in TABLE}
    for setting in TABLE:
        described = rows[setting.variable]
        if described.startswith("`"):
            assert bare(described) == as_set(setting.default()), setting.variable
        else:
            assert described.replace("`", "") == setting.words, setting.variable


def as_set(default: object) -> str:
    """A default as one would write it into the environment."""
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return str(int(default) if isinstance(default, bool) else default)


def test_no_other_page_has_a_table_of_settings() -> None:
    line = f"| {' | '.join(HEADER)} |"
    pages = [page.name for page in PAGES if line in page.read_text("utf-8")]
    assert pages == ["settings.md"]
