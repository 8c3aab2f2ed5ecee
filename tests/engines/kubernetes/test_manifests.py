"""The manifests that `distrun k8s` prints are valid for Kubernetes in its strict mode, short, and ask for no rights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from session.tiers import one_in_gate

yaml = pytest.importorskip("yaml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

pytestmark = pytest.mark.gate
VERSIONS = ("1.31", "1.34", "1.37")
FULL = (
    *("--hosts", "4", "--gpus", "8", "--cpus", "16", "--memory", "64Gi", "--name", "train", "-n", "team"),
    *("-x", "NCCL_DEBUG=INFO", "-x", "ODD=yes", "--wdir", "/app", "--elastic", "--agent-args", "--keepalive 30"),
)
BROUGHT = ("--ship", str(Path(__file__).parent), "--bootstrap=numpy", "-n", "team")


def k8s(*options: str, command: tuple[str, ...] = ("python", "train.py", "--lr", "1e-3")):
    words = [sys.executable, "-m", "distrun.runner", "k8s", *options, "--", *command]
    return subprocess.run(words, capture_output=True, text=True)


def printed(*options: str) -> str:
    done = k8s("--image", "reg:5000/me/train:1", *options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    "options",
    one_in_gate(BROUGHT, (), FULL, ("--secret", "mine", "--writable", "--user", "1000")),
    ids=lambda options: " ".join(options[:1]),
)
def test_all_of_them_are_valid_in_every_version(options):
    for document in yaml.safe_load_all(printed(*options)):
        for version in VERSIONS:
            assert kubernetes_validate.validate(document, version, strict=True) == version


def test_they_have_sixty_lines_at_most_and_the_names_that_pods_look_for():
    text = printed(*FULL)
    assert len(text.splitlines()) <= 60
    secret, service, job = yaml.safe_load_all(text)
    assert [item["metadata"] for item in (secret, service, job)] == [{"name": "train", "namespace": "team"}] * 3
    assert len(secret["stringData"]["key"]) == 64
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": "train"}
    assert service["spec"]["publishNotReadyAddresses"] is True
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == [
        *("distrun", "agent", "--elastic", "--keepalive", "30", "--"),
        *("python", "train.py", "--lr", "1e-3"),
    ]
    values = {item["name"]: item.get("value") for item in container["env"]}
    assert (values["DISTRUN_HOSTS"], values["DISTRUN_ENDPOINT"], values["ODD"]) == ("4", "train-0.train", "yes")
    assert secret["stringData"]["key"] not in str(job)
    assert container["resources"]["limits"] == {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8"}


def test_pods_that_make_environments_wait_longer_for_each_other_unless_told_otherwise():
    *_, job = yaml.safe_load_all(printed(*BROUGHT, "--agent-args", "--start-timeout 60"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"][:6] == ["agent", "--start-timeout", "1800", "--start-timeout", "60", "--"]


def test_pods_have_no_root_no_capability_no_token_and_write_to_tmp_only():
    *_, job = yaml.safe_load_all(printed())
    pod = job["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_an_eviction_counts_for_nothing_and_a_rank_that_fails_ends_the_job():
    *_, job = yaml.safe_load_all(printed())
    evicted, failed = job["spec"]["podFailurePolicy"]["rules"]
    assert (evicted["action"], evicted["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    codes = failed["onExitCodes"]
    assert (failed["action"], codes["operator"], codes["values"]) == ("FailJob", "NotIn", [143])
    assert job["spec"]["podReplacementPolicy"] == "Failed"


@pytest.mark.parametrize(
    ("options", "said"),
    one_in_gate(
        pytest.param(["--name", "Train"], "--name 'Train' cannot be the name of a job: allowed are"),
        pytest.param(
            ["--memory", "64 GB"], "--memory '64 GB' is no quantity of Kubernetes: allowed are such as 4, 500m"
        ),
        pytest.param(["-x", "HOME"], "-x 'HOME' gives a pod no variable: allowed is NAME=VALUE"),
        pytest.param(["--agent-args", "'"], '--agent-args "\'" cannot be split into words'),
    ),
)
def test_what_cannot_be_is_refused_with_what_is_allowed(options, said):
    done = k8s("--image", "i", *options)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_example_is_what_its_first_lines_print():
    example = Path(__file__).parents[3] / "examples" / "kubernetes" / "job.yaml"
    text = example.read_text()
    options = ("--image", "registry.example.com/spirals", "--hosts", "2", "--slots", "2", "--name", "spirals")
    done = k8s(*options, "--secret", "spirals", command=("python", "numpy_spirals.py"))
    assert text.partition("apiVersion")[2] == done.stdout.partition("apiVersion")[2]
