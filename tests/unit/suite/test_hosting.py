"""Files for where the repository is hosted: workflows, forms, the citation, and absolute addresses for an index."""

import re
from pathlib import Path

import addresses
import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ROOMS = {path.name for path in (ROOT / "tests").iterdir()} | {path.name for path in (ROOT / "distrun").iterdir()}


def read(path):
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_least_rights_and_deadlines_and_runs_files_that_exist(path):
    workflow = read(path)
    assert workflow[True], "when it runs"  # YAML 1.1 takes the key `on` for a truth value
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 360, name
        assert {job.get("needs", name)} <= set(workflow["jobs"])
        for step in job["steps"]:
            assert len({"uses", "run"} & set(step)) == 1, step
            for file in re.findall(r"(?<![\w/])(?:scripts|examples|\.ci)/[\w/.]+", step.get("run", "")):
                assert (ROOT / file).is_file(), file
        assert set(job.get("strategy", {}).get("matrix", {}).get("room", ())) <= ROOMS


def test_only_the_job_that_publishes_may_speak_for_the_project_to_the_index():
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "pypi"
    assert jobs["publish"]["needs"] == "build"
    assert not any("password" in step.get("with", {}) for step in jobs["publish"]["steps"])


def test_forms_ask_and_the_citation_names_the_licence():
    for form in ("bug", "wish"):
        body = read(ROOT / ".github" / "ISSUE_TEMPLATE" / f"{form}.yml")["body"]
        assert any(field.get("validations", {}).get("required") for field in body)
    assert read(ROOT / "CITATION.cff")["license"] == "Apache-2.0"


def test_readme_for_an_index_has_no_relative_link():
    text = addresses.absolute((ROOT / "README.md").read_text(), "https://example.com/a/distrun", "v1")
    assert "https://example.com/a/distrun/raw/v1/docs/picture.svg" in text
    assert "(https://example.com/a/distrun/blob/v1/docs/coming-from-horovod.md#what-is-missing)" in text
    assert re.findall(r"\]\((?!https://|#)[^)]*\)", text) == []


def test_the_metadata_for_an_index_has_the_addresses_of_the_project():
    metadata = addresses.with_urls((ROOT / "pyproject.toml").read_text(), "https://example.com/a/distrun", "v1")
    assert '[project.urls]\nHomepage = "https://example.com/a/distrun"\n' in metadata
    assert metadata.count("[project.scripts]\n") == 1
