"""Command lines of horovodrun, and its configuration files, become ours."""

import pytest

from distrun.errors import UsageError
from distrun.runner.command_lines.horovodrun import PROGRAM
from distrun.runner.command_lines.translate import translate


def ours(line):
    translation = translate(PROGRAM, line.split())
    return translation.arguments, translation.description()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-np 2 -H localhost:4 python train.py", "-np 2 --hosts localhost:4 python train.py"),
        ("--num-proc 2 -H a:1 --hosts b:2 cmd", "-np 2 --hosts a:1,b:2 cmd"),
        ("-hostfile f -p 2222 -i key cmd", "--hostfile f --ssh-port 2222 --ssh-identity-file key cmd"),
        ("-p2222 --hostf f cmd", "--ssh-port 2222 --hostfile f cmd"),
        ("--network-interface eth0 --network-interfaces eth1,eth2 cmd", "--network eth0,eth1,eth2 cmd"),
        ("--output-filename out -prefix-timestamp cmd", "--output-dir out --prefix-output-with-timestamp cmd"),
        ("--gloo --disable-cache --verbose --start-timeout 9 cmd", "--verbose --start-timeout 9 cmd"),
        ("--mpi --mpi-args=--tag cmd", "--launcher mpirun --mpi-args --tag cmd"),
        ("-cb", "--check-build"),
        ("-v", "--version"),
        ("--fusion-threshold-mb 32 cmd", "-x DISTRUN_FUSION_THRESHOLD=33554432 -x DISTRUN_BUCKET_BYTES=33554432 cmd"),
        ("--cache-capacity 0 --tcp cmd", "-x DISTRUN_CACHE_CAPACITY=0 -x NCCL_IB_DISABLE=1 cmd"),
        ("--no-stall-check cmd", "--stall-warning 0 --stall-timeout 0 cmd"),
        (
            "--stall-check-warning-time-seconds 5 --stall-check-shutdown-time-seconds 9 cmd",
            "--stall-warning 5 --stall-timeout 9 cmd",
        ),
        ("--log-level DEBUG --log-without-timestamp cmd", "-x DISTRUN_LOG_LEVEL=debug -x DISTRUN_LOG_TIME=0 cmd"),
        (
            "--timeline-filename t.json --timeline-mark-cycles cmd",
            "-x HOROVOD_TIMELINE=t.json --timeline-mark-cycles cmd",
        ),
        ("--autotune --autotune-log-file f cmd", "--autotune --autotune-log-file f cmd"),
        ("--slots-per-host 4 --hierarchical-allreduce cmd", "--slots 4 cmd"),
        ("--binding-args=-bind-to=socket cmd", "--bind-to socket cmd"),
        (
            "--min-num-proc 1 --max-np 4 --host-discovery-script ./x --reset-limit 3 cmd",
            "--min-np 1 --max-np 4 --hosts-from ./x --reset-limit 3 cmd",
        ),
        ("--min-np 1 --blacklist-cooldown-range 1 60 cmd", "--min-np 1 --cooldown 1,60 cmd"),
    ],
)
def test_flags_become_ours_in_horovods_mode(line, expected):
    assert ours(line) == (["--horovod", *expected.split()], "")


def test_start_timeout_wins_over_the_timeout_of_gloo():
    assert ours("--start-timeout 9 --gloo-timeout-seconds 7")[0][1:] == ["--start-timeout", "7", "--start-timeout", "9"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--cycle-time-ms 2.5", "without a cycle"),
        ("--autotune-log-file f", "--autotune-log-file f (nothing is tuned without --autotune)"),
        ("--autotune-warmup-samples 3 --autotune-gaussian-process-noise 0.1", "within 50 steps"),
        ("--reset-limit 3 --blacklist-cooldown-range 1 2", "--reset-limit 3, --cooldown 1,2 (it is for elastic jobs"),
        ("--num-nccl-streams 2 --thread-affinity 1", "--bind-to core"),
        ("--mpi-args --tag", "--mpi uses"),
        ("--no-hierarchical-allreduce --torus-allreduce", "once per host"),
    ],
)
def test_what_only_tunes_is_ignored_with_the_reason(line, why):
    arguments, ignored = ours(line)
    assert arguments == ["--horovod"]
    assert why in ignored


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--jsrun cmd", "horovodrun --jsrun: jsrun is not used"),
        ("--fusion-threshold-mb x cmd", "horovodrun --fusion-threshold-mb x: 'x' is not a number >= 0"),
        ("--log-level LOUD cmd", "horovodrun --log-level LOUD: 'LOUD' is not understood: allowed are trace, debug"),
        ("--binding-args='x cmd", "it cannot be split"),
    ],
)
def test_what_would_make_another_job_is_refused(line, sentence):
    with pytest.raises(UsageError) as error:
        ours(line)
    assert sentence in str(error.value)


CONFIG = """
controller: mpi
params:
  fusion_threshold_mb: 1
  cycle_time_ms: 3.5
  hierarchical_allreduce: true
autotune: {enabled: false}
timeline: {filename: t.json, mark_cycles: true}
stall_check:
  enabled: true
  warning_time_seconds: 30
  shutdown_time_seconds:
library_options: {mpi_threads_disable: false}
logging: {level: INFO, with_timestamp: true}
"""


@pytest.fixture
def config(tmp_path):
    def write(text):
        file = tmp_path / "config.yaml"
        file.write_text(text)
        return str(file)

    return write


def test_a_configuration_file_says_what_flags_say_and_flags_win(config):
    translation = translate(
        PROGRAM, ["--stall-check-warning-time-seconds", "9", "--config-file", config(CONFIG), "cmd"]
    )
    assert " ".join(translation.arguments) == (
        "--horovod --launcher mpirun -x DISTRUN_FUSION_THRESHOLD=1048576 -x DISTRUN_BUCKET_BYTES=1048576 "
        "-x HOROVOD_TIMELINE=t.json --timeline-mark-cycles "
        "--stall-warning 30 -x DISTRUN_LOG_LEVEL=info -x DISTRUN_LOG_TIME=1 --stall-warning 9 cmd"
    )
    assert "--cycle-time-ms 3.5" in translation.description()


EVERY_KEY = """
controller: GLOO
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 10
  cache_capacity: 2048
  hierarchical_allreduce: true
  hierarchical_allgather: true
  torus_allreduce: false
autotune:
  enabled: true
  log_file: log.csv
  warmup_samples: 5
  steps_per_sample: 20
  bayes_opt_max_samples: 50
  gaussian_process_noise: 0.9
timeline: {filename: t.json, mark_cycles: true}
stall_check: {enabled: true, warning_time_seconds: 120, shutdown_time_seconds: 240}
library_options:
  mpi_threads_disable: true
  num_nccl_streams: 2
  thread_affinity: 1
  ccl_bgt_affinity: 1
  mlsl_bgt_affinity: 1
  gloo_timeout_seconds: 60
logging: {level: INFO, with_timestamp: true, hide_timestamp: true}
"""


def test_every_key_of_a_configuration_file_of_any_version_of_horovodrun_is_taken(config):
    arguments = translate(PROGRAM, ["--config-file", config(EVERY_KEY), "cmd"]).arguments
    assert "--launcher" not in arguments
    assert {"DISTRUN_CACHE_CAPACITY=2048", "DISTRUN_LOG_TIME=0", "HOROVOD_TIMELINE=t.json"} < set(arguments)


def test_an_empty_configuration_file_says_nothing(config):
    assert translate(PROGRAM, ["--config-file", config("params:\n"), "cmd"]).arguments == ["--horovod", "cmd"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("parms: {}", "there is no section 'parms': allowed are controller, params, autotune"),
        ("params: {fusion_threshold: 1}", "there is no key 'fusion_threshold' in the section params: allowed are fusi"),
        ("params: {hierarchical_allreduce: 1}", "params.hierarchical_allreduce is 1: allowed are true and false"),
        ("params: {cycle_time_ms: [1]}", "params.cycle_time_ms is [1]: give one number"),
        ("params: 3", "the section params holds 3: give keys and values"),
        ("controller: jsrun", "controller is 'jsrun': allowed are gloo, mpi"),
        ("[1]", "it holds [1] and no sections"),
        ("a: [", "it is not YAML"),
    ],
)
def test_what_horovodrun_does_not_know_is_told_with_what_it_knows(config, text, sentence):
    with pytest.raises(UsageError) as error:
        translate(PROGRAM, ["--config-file", config(text), "cmd"])
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_configuration_file_that_is_not_there_is_named():
    with pytest.raises(UsageError, match=r"--config-file /no/file: it cannot be read: No such file"):
        ours("--config-file /no/file cmd")
