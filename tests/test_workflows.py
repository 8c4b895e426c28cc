"""The workflows of GitHub Actions, which do not run here: they are valid, strict, and name what exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
WORKFLOW = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
ACTION = re.compile(r"uses: (\S+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+$")  # a tag can be moved, a commit cannot
ACTIONS = {
    "actions/checkout", "actions/setup-python", "actions/upload-artifact", "actions/download-artifact",
    "pypa/gh-action-pypi-publish",
}  # fmt: skip


def steps_of(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_there_is_one_for_tests_documentation_and_releases():
    assert [path.stem for path in WORKFLOWS] == ["docs", "release", "test"]


@WORKFLOW
def test_each_job_has_only_the_rights_it_needs_and_ends(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {}
    assert "concurrency" in workflow
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 60, name
        rights = {"attach": {"contents": "write"}, "publish": {"id-token": "write"}}.get(name, {"contents": "read"})
        assert job["permissions"] == rights, name
    for step in steps_of(workflow):
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), "values reach a shell through env only"


@WORKFLOW
def test_they_use_actions_targets_and_extras_that_exist(path):
    steps = steps_of(yaml.safe_load(path.read_text()))
    used = [line.strip().removeprefix("- ") for line in path.read_text().splitlines() if "uses:" in line]
    assert {found[1] for line in used if (found := ACTION.match(line))} <= ACTIONS
    assert [line for line in used if not ACTION.match(line)] == []
    for step in steps:
        for target in re.findall(r"^make ([\w-]+)", step.get("run", ""), re.M):
            assert target in TARGETS, target
        for extras in re.findall(r"-e '\.\[([\w,-]+)\]'", step.get("run", "")):
            assert set(extras.split(",")) <= set(EXTRAS), extras


def test_tests_run_on_every_system_with_every_python():
    jobs = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]
    matrix = jobs["test"]["strategy"]["matrix"]
    assert {system.split("-")[0] for system in matrix["os"]} == {"ubuntu", "macos", "windows"}
    assert matrix["python"] == ["3.11", "3.12", "3.13"]
    assert not any("make " in step.get("run", "") for step in jobs["test"]["steps"])  # Windows has no make


def test_a_release_is_published_without_a_token_and_only_by_approval():
    text = (ROOT / ".github/workflows/release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert jobs["publish"]["environment"] == "pypi"
    assert "secrets." not in text
    assert (jobs["publish"]["needs"], jobs["attach"]["needs"]) == ("build", "publish")
