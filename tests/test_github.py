"""The hosting site accepts the files that it reads, and its workflow runs what a contributor runs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
BIN = Path(sys.executable).parent


def run(*command: str | Path) -> None:
    """Run a linter; on failure show what it printed."""
    result = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("custom.github-workflows-require-timeout", WORKFLOWS),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_files_are_of_their_schema(schema: str, files: list[Path]) -> None:
    """Workflows, issue forms and their configuration have the fields that the site knows."""
    assert files
    run(BIN / "check-jsonschema", "--builtin-schema", schema, *files)


def test_the_workflow_has_no_known_hole() -> None:
    """Actions are pinned, no step has a right that it does not use, and none keeps the checkout's credentials."""
    run(BIN / "zizmor", "--offline", "--no-progress", "--no-config", GITHUB)


def test_the_workflow_runs_make_test_and_nothing_hidden() -> None:
    """The site runs what a contributor runs, on every Python that the package names."""
    (workflow,) = WORKFLOWS
    (job,) = YAML(typ="safe").load(workflow)["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make test"]
    assert [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step] == ["actions/checkout"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == pythons
    assert project["requires-python"] == f">={pythons[0]}"
