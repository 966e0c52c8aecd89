"""The table of mutants fits the code: each is a change that can be made, and names what finds it."""

import ast
from pathlib import Path

import pytest

from tests.campaign.faults import FAULTS
from tests.campaign.mutants import CAMPAIGN, ROOT, Mutant, WrongMutant, main, mutants

MUTANTS = mutants()


def test_there_are_twenty_and_more_each_with_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_put_into_the_code_of_today(mutant: Mutant, tmp_path: Path) -> None:
    copy = tmp_path / mutant.file
    copy.parent.mkdir(parents=True)
    copy.write_bytes((ROOT / mutant.file).read_bytes())
    mutant.put_into(tmp_path)
    ast.parse(copy.read_text("utf-8"))
    with pytest.raises(WrongMutant):
        mutant.put_into(tmp_path)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_names_a_test_file_or_a_fault(mutant: Mutant) -> None:
    if mutant.found_by.startswith(CAMPAIGN):
        assert mutant.found_by.removeprefix(CAMPAIGN) in FAULTS
    else:
        assert (ROOT / mutant.found_by).is_file()


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == [mutant.name for mutant in MUTANTS]
