"""The command line of `distrun predict`: what it prints, and what it refuses with one sentence."""

import json

import pytest

from distrun import cli

PROFILE = {
    "format": 1,
    "ranks": 2,
    "hosts": 2,
    "seconds": {"step": 0.421, "forward": 0.1, "backward": 0.2},
    "jitter": 0.002,
    "gradients": [
        {"bytes": 12_800_000, "ready": 0.1, "seconds": 0.11},
        {"bytes": 12_800_000, "ready": 0.2, "seconds": 0.11},
    ],
    "link": {"bits_per_s": 1e9, "latency_s": 5e-5},
}


@pytest.fixture
def predict(tmp_path, capsys):
    """Call `predict(PROFILE, arguments)`: the status, stdout and stderr."""

    def call(profile, *arguments):
        file = tmp_path / "profile.json"
        file.write_text(json.dumps(profile))
        with pytest.raises(SystemExit) as ended:
            cli.main(["predict", str(file), *arguments])
        return (ended.value.code or 0, *capsys.readouterr())

    return call


def test_a_table_has_a_line_for_each_number_of_hosts(predict):
    status, output, error = predict(PROFILE, "--hosts", "1,2,8")
    assert (status, error) == (0, "")
    lines = output.splitlines()
    assert lines[0] == "Measured on 2 ranks on 2 hosts: a step of 421 ms, 25.6 MB of gradients in 2 operations."
    assert lines[1] == "Predicted for links of 1 Gbit/s, of which gradients get 93%."
    assert lines[3].split() == ["hosts", "ranks", "step", "speed-up", "efficiency", "bound", "by"]
    assert [line.split()[:2] for line in lines[4:7]] == [["1", "1"], ["2", "2"], ["8", "8"]]
    assert [line.split()[-1] for line in lines[4:7]] == ["compute", "compute", "network"]


def test_a_job_on_several_hosts_needs_no_speed_of_links(predict):
    status, output, _ = predict(PROFILE | {"link": None}, "--hosts", "2,8")
    assert status == 0
    assert "Predicted for links of 933 Mbit/s, of which gradients get 100%." in output
    assert "Links are taken to be as fast as gradients were between the hosts of this job, 933 Mbit/s" in output


def test_json_has_the_documented_members(predict):
    status, output, _ = predict(PROFILE, "--hosts", "4", "--ranks-per-host", "2", "--link", "10gbit", "--json")
    found = json.loads(output)
    assert status == 0
    assert list(found) == ["format", "batch", "link", "predictions", "notes"]
    assert found["link"]["bits_per_s"] == 1e10
    (one,) = found["predictions"]
    assert list(one) == [
        *("hosts", "ranks", "step_s", "step_error_s", "speedup", "efficiency", "efficiency_error", "bound"),
        *("waiting_s", "straggling_s"),
    ]
    assert (one["hosts"], one["ranks"]) == (4, 8)
    assert one["speedup"] == pytest.approx(one["efficiency"] * 8)


def test_without_hosts_those_of_the_job_and_more_are_shown(predict):
    found = json.loads(predict(PROFILE, "--json")[1])
    assert [item["hosts"] for item in found["predictions"]] == [2, 4, 8]


def test_a_kept_batch_makes_steps_shorter(predict):
    fixed, scaled = (
        json.loads(predict(PROFILE, "--hosts", "8", "--link", "100gbit", "--batch", batch, "--json")[1])
        for batch in ("fixed", "scaled")
    )
    assert fixed["predictions"][0]["step_s"] < scaled["predictions"][0]["step_s"] / 2


def test_a_slow_switch_makes_steps_longer(predict):
    free, shared = (
        json.loads(predict(PROFILE, "--hosts", "2,8", *fabric, "--json")[1])["predictions"]
        for fabric in ((), ("--fabric", "2gbit"))
    )
    assert shared[0] == free[0]
    assert shared[1]["step_s"] > free[1]["step_s"] * 2


def test_what_was_given_is_not_assumed(predict):
    alone = {**PROFILE, "ranks": 1, "hosts": 1, "link": None}
    assumed = json.loads(predict(alone, "--hosts", "4", "--link", "10gbit", "--json")[1])
    given = ("--efficiency", "0.9", "--latency", "20us")
    known = json.loads(predict(alone, "--hosts", "4", "--link", "10gbit", *given, "--json")[1])
    assert len(assumed["notes"]) == 2
    assert known["notes"] == []
    assert known["predictions"][0]["step_error_s"] < assumed["predictions"][0]["step_error_s"]


def test_the_slowest_link_that_the_doctor_has_measured_counts(predict, tmp_path):
    file = tmp_path / "doctor.json"
    links = [{"bytes_per_s": 2.5e9, "round_trip_s": 1e-4}, {"bytes_per_s": 1.25e9, "round_trip_s": 2e-4}]
    file.write_text(json.dumps({"links": [*links, {"bytes_per_s": None, "round_trip_s": None}]}))
    found = json.loads(predict(PROFILE, "--link", str(file), "--json")[1])
    assert (found["link"]["bits_per_s"], found["link"]["latency_s"]) == (1e10, 1e-4)
    file.write_text("{}")
    status, _, error = predict(PROFILE, "--link", str(file))
    assert status == 2
    assert "holds no link that the doctor has measured" in error


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        (
            {"link": None, "hosts": 1},
            ["--hosts", "4"],
            "the speed of the links between 4 hosts is not known: give it by --link",
        ),
        ({}, ["--link", "25"], "'25' is not the speed of a link"),
        ({}, ["--latency", "5"], "'5' is not a delay"),
        ({}, ["--hosts", "2,x"], "--hosts '2,x' is not a list of whole numbers"),
        ({}, ["--hosts", "0"], "--hosts '0'"),
        ({}, ["--efficiency", "1.5"], "1.5"),
        ({}, ["--ranks-per-host", "0"], "0"),
        ({}, ["--hots", "2"], "there is no option --hots: did you mean --hosts?"),
        (
            {"missing": "no rank has told what it did"},
            [],
            "left no profile to predict from: no rank has told what it did",
        ),
        ({"gradients": None}, [], "gradients of the profile in profile.json is missing"),
    ],
)
def test_bad_input_costs_one_sentence_and_status_2(predict, change, arguments, words):
    status, output, error = predict(PROFILE | change, *arguments)
    assert (status, output) == (2, "")
    assert error.startswith("distrun: error: ")
    assert error.count("\n") == 1
    assert words in error


def test_a_job_that_does_not_know_its_link_is_taken_to_have_had_the_one_that_is_given(predict):
    found = json.loads(predict({**PROFILE, "link": None}, "--link", "1gbit", "--latency", "50us", "--json")[1])
    assert found["predictions"] == json.loads(predict(PROFILE, "--json")[1])["predictions"]
    assert found["notes"] == ["The job is taken to have run on links of the same speed."]


def test_one_host_needs_no_link(predict):
    assert predict({**PROFILE, "ranks": 1, "hosts": 1, "link": None}, "--hosts", "1")[0] == 0
