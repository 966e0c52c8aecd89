"""A list that is truncated, replaced or written while it is cleaned: no wrong output, no traceback."""

import json
import os
from pathlib import Path

import pytest

from mailprobe.api.cli.cleaning.outputs import Order
from mailprobe.api.cli.cleaning.run import clean_list
from mailprobe.api.errors import CommandError
from mailprobe.api.listfile.opening import open_list
from mailprobe.api.listfile.survey import BadList, Changed
from tests.api.cli.test_clean import names_in, rows_of, written
from tests.api.fake_source import FakeSource

HEAD = "name,email\n"
ROWS = "".join(f'"N {n}",a{n}@shop.test\n' for n in range(3000))


class Meddling(FakeSource):
    """A source that changes the list once every address has been verified."""

    def __init__(self, path: Path, text: str | bytes) -> None:
        super().__init__()
        self._path = path
        self._octets = text if isinstance(text, bytes) else text.encode()

    def report(self, line: str) -> None:
        if len(self.asked) == 2999 or "@" not in line:
            self._path.write_bytes(self._octets)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + ROWS[:20_000],
        HEAD + ROWS + "New,new@shop.test\n",
        HEAD + ROWS + "Again,a1@shop.test\n",
        HEAD + ROWS.replace('"N 7"', '"M 7"'),
        HEAD + "".join(reversed(ROWS.splitlines(keepends=True))),
        HEAD + ROWS.replace("N 2000", "N 20\n00"),
        HEAD + ROWS.replace('"N 2000"', '"N 2000'),
        HEAD,
        "",
        b"\xff\xfe\x00",
        (HEAD + ROWS).encode("utf-16"),
        (HEAD + ROWS).encode() + b"\xff",
    ],
)
def test_a_list_that_changes_before_it_is_written_gives_no_output(
    tmp_path: Path, text: str | bytes
) -> None:
    path = written(tmp_path / "list.csv", HEAD + ROWS)
    with pytest.raises(CommandError, match="was changed while it was cleaned") as fault:
        clean_list(
            Order(path, tmp_path / "out.csv"),
            Meddling(path, text).open,
            standard_output=None,  # type: ignore[arg-type]
        )
    assert fault.value.exit_code == 1
    assert "\n" not in fault.value.message
    assert names_in(tmp_path) == ["list.csv", "out.csv.journal"]


def test_a_list_that_is_put_back_is_gone_on_with(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv", HEAD + ROWS)
    order = Order(path, tmp_path / "out.csv", resume=True)
    with pytest.raises(CommandError):
        clean_list(order, Meddling(path, HEAD).open, standard_output=None)  # type: ignore[arg-type]
    written(path, HEAD + ROWS)
    source = FakeSource()
    clean_list(order, source.open, standard_output=None)  # type: ignore[arg-type]
    assert source.asked == []
    assert len(rows_of(tmp_path / "out.csv")) == 3000


def test_a_list_replaced_by_another_under_its_name_is_cleaned_as_it_was(tmp_path: Path) -> None:
    """`clean` reads the opened file to its end, even if another file has its name by then."""

    class Renaming(Meddling):
        def report(self, line: str) -> None:
            if len(self.asked) == 1:
                os.replace(written(tmp_path / "other", "x,email\n"), tmp_path / "list.csv")

    path = written(tmp_path / "list.csv", HEAD + ROWS)
    source = Renaming(path, "")
    clean_list(Order(path, tmp_path / "out.csv"), source.open, standard_output=None)  # type: ignore[arg-type]
    assert len(rows_of(tmp_path / "out.csv")) == 3000


@pytest.mark.parametrize("name", ["list.csv", "list.txt", "list.ndjson"])
def test_a_list_that_changes_during_the_first_reading_is_refused(tmp_path: Path, name: str) -> None:
    rows = [f"a{n}@shop.test" for n in range(40_000)]
    text = "".join(
        {"list.csv": f"{r},1\n", "list.txt": f"{r}\n"}.get(name, json.dumps({"email": r}) + "\n")
        for r in rows
    )
    path = written(tmp_path / name, text)

    def read() -> None:
        with open_list(path) as source:
            for number, _ in enumerate(source.rows()):
                if number == 10:
                    os.truncate(path, len(text) // 2 + 3)

    with pytest.raises((Changed, BadList)) as bad:
        read()
    assert "\n" not in bad.value.message
