"""Files for where the project is hosted: workflows, forms, citation, addresses for an index, and conda's recipe."""

import re
from pathlib import Path

import addresses
import pytest

import distrun

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RECIPE = ROOT / "scripts" / "packaging" / "conda" / "recipe.yaml"
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


def test_a_release_has_its_origin_and_its_contents_attested():
    steps = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["build"]["steps"]
    attested = {step["uses"].partition("@")[0]: step["with"] for step in steps if "attest" in step.get("uses", "")}
    assert attested["actions/attest-build-provenance"]["subject-path"] == "dist/*"
    assert attested["actions/attest-sbom"] == {"subject-path": "dist/*", "sbom-path": "sbom.json"}
    assert any("--output-file sbom.json" in step.get("run", "") for step in steps)


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


def test_the_conda_recipe_has_the_version_and_the_dependencies_of_the_metadata():
    metadata = (ROOT / "pyproject.toml").read_text()
    dependencies = re.findall(r'"(.*?)"', metadata.partition("\ndependencies = [")[2].partition("]")[0])
    recipe = read(RECIPE)
    oldest = re.search(r'requires-python = ">=(.*)"', metadata)[1]
    commands = re.findall(
        r'^(distrun.*) = "(.*)"$', metadata.partition("[project.scripts]")[2].partition("\n[")[0], re.M
    )
    assert recipe["context"] == {"name": "distrun", "version": distrun.__version__, "python_min": oldest}
    assert [each.replace(" ", "") for each in recipe["requirements"]["run"][2:]] == dependencies
    assert recipe["requirements"]["run"][:2] == ["__linux", "python >=${{ python_min }}"]
    assert recipe["build"]["python"]["entry_points"] == [f"{name} = {place}" for name, place in commands]
    assert (RECIPE.parent / recipe["source"]["path"] / recipe["about"]["license_file"]).is_file()


def test_rattler_accepts_the_conda_recipe():
    rattler_build = pytest.importorskip("rattler_build")
    [variant] = rattler_build.Stage0Recipe.from_file(RECIPE).render()
    assert (variant.recipe.package.name, str(variant.recipe.package.version)) == ("distrun", distrun.__version__)
