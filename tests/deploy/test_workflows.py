"""The workflows: what they run is fixed, and the checks run where the package says that it works."""

import re
import subprocess

import pytest
import yaml

from tests.deploy.files import ROOT
from tests.test_licences import PROJECT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PINNED = re.compile(r"[\w-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
NOTES = re.compile(r"awk .*? > dist/notes\.md", re.DOTALL)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_of_others_is_pinned_by_its_commit(path):
    used = re.findall(r"uses: (.+)", path.read_text("utf-8"))
    assert used
    foreign = [each for each in used if not each.startswith("./")]
    assert [each for each in foreign if not PINNED.fullmatch(each)] == []
    assert len({each.partition("@")[0] for each in foreign}) == len(set(foreign)), "two versions"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_have_only_the_rights_that_they_name(path):
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {}
    assert all("permissions" in job for job in workflow["jobs"].values())


def test_the_suite_runs_on_each_interpreter_that_is_declared():
    jobs = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text("utf-8"))["jobs"]
    prefix = "Programming Language :: Python :: 3."
    declared = [each for each in PROJECT["classifiers"] if each.startswith(prefix)]
    assert [
        f"{prefix}{each[2:]}" for each in jobs["test"]["strategy"]["matrix"]["python"]
    ] == declared


def test_a_releases_notes_are_the_changelogs_lines_of_its_version(tmp_path):
    (tmp_path / "dist").mkdir()
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changes\n\n## [Unreleased]\n\n- c\n\n## [0.1.0] - today\n\n- b\n\n## [0.1.0rc1]\n\n- a\n"
    )
    found = NOTES.search((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
    assert found
    env = {"GITHUB_REF_NAME": "v0.1.0", "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-euc", found[0]], cwd=tmp_path, env=env, check=True)
    assert (tmp_path / "dist/notes.md").read_text().split() == ["-", "b"]
