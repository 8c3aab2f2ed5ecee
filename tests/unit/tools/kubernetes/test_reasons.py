"""The reason why a pod does not run, or has ended, from statuses as the API gives them."""

import pytest

from distrun.tools.kubernetes.manifests import default_name
from distrun.tools.kubernetes.reasons import death, exit_code, obstacle


def pod(state=None, *conditions):
    containers = [] if state is None else [{"name": "main", "image": "me/x", "state": state}]
    return {"metadata": {"name": "x-1"}, "status": {"containerStatuses": containers, "conditions": list(conditions)}}


def waiting(reason, message=""):
    return pod({"waiting": {"reason": reason, "message": message}})


@pytest.mark.parametrize(
    ("status", "begins", "is_final"),
    [
        (waiting("ErrImagePull", "not found."), "the image 'me/x' cannot be pulled for pod x-1: not found; see", False),
        (waiting("ImagePullBackOff"), "the image 'me/x' cannot be pulled for pod x-1; see that its name", True),
        (waiting("CreateContainerConfigError", 'secret "k" not found'), "the container of pod x-1 cannot be", False),
        (
            pod(None, {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}),
            "no node has room for pod x-1: 0/3 nodes; ask for less",
            False,
        ),
    ],
)
def test_what_keeps_a_pod_from_running_is_told_with_the_remedy(status, begins, is_final):
    found = obstacle(status)
    assert found.text.startswith(begins)
    assert found.is_final == is_final


@pytest.mark.parametrize("status", [pod(), pod({"running": {}}), waiting("ContainerCreating")])
def test_nothing_is_told_of_a_pod_that_runs_or_is_about_to(status):
    assert obstacle(status) is None
    assert death(status) == ""
    assert exit_code(status) is None


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            pod({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            "pod x-1 was killed, as it used more memory than its limit; give it more with --memory",
        ),
        (
            pod({"terminated": {"exitCode": 128, "reason": "StartError", "message": "exec: distrun: not found"}}),
            "the container of pod x-1 could not be started: exec: distrun: not found; is its program in the image?",
        ),
        (
            pod(None, {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}),
            "pod x-1 was evicted (PreemptionByScheduler)",
        ),
        (pod({"terminated": {"exitCode": 1, "reason": "Error"}}), ""),
    ],
)
def test_the_end_of_a_pod_is_told_where_its_log_cannot(status, said):
    assert death(status) == said


def test_the_exit_code_is_that_of_the_container():
    assert exit_code(pod({"terminated": {"exitCode": 7}})) == 7


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "src/Train_GPT.py", "--lr", "1"), "train-gpt-ab"),
        (("./run.sh",), "run-ab"),
        (("/usr/bin/true",), "true-ab"),
        (("python", "-c", "x"), "python-ab"),
        (("123",), "job-ab"),
    ],
)
def test_a_job_is_named_after_its_script(command, name):
    assert default_name(command, "ab") == name
