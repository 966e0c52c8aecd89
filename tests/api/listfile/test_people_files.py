"""Lists as people have them are read as they are meant, or refused by the name of what they are."""

from pathlib import Path

import pytest

from mailprobe.api.listfile.opening import open_list
from mailprobe.api.listfile.survey import BadList
from mailprobe.bench.lab.people_files import PeopleFile, files

FILES = list(files())


@pytest.mark.parametrize("file", FILES, ids=[each.name for each in FILES])
def test_a_file_is_read_as_it_is_meant(tmp_path: Path, file: PeopleFile) -> None:
    path = tmp_path / file.file
    path.write_bytes(file.octets)
    if file.addresses is None:
        with pytest.raises(BadList) as refused, open_list(path):
            pass
        assert "\n" not in refused.value.message
        return
    with open_list(path) as source:
        assert [row.address for row in source.rows()] == [*file.addresses]


def test_there_are_sixty_files() -> None:
    assert len({each.name for each in FILES}) == len(FILES) >= 60
