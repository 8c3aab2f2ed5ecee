"""Settings are read and checked in one place, documented in one place, and a misspelt one is reported."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from distrun.contract import settings
from distrun.contract.launch import LaunchContract
from distrun.contract.settings import VARIABLES, Settings, given, unknown
from distrun.errors import UsageError
from distrun.host.clusters.kubernetes import ENDPOINT, HOSTS, SLOTS
from distrun.tensor_fusion import batching, buckets

ROOT = Path(__file__).parents[3]
SECRET = "0123456789abcdef" * 2


def test_without_variables_everything_has_its_default():
    assert Settings.of({}) == Settings.of(dict.fromkeys(VARIABLES, "")) == Settings()
    assert Settings() == Settings(
        stall_warning=60.0,
        stall_timeout=0.0,
        start_timeout=60.0,
        keepalive=15.0,
        fusion_threshold=64 << 20,
        bucket_bytes=25 << 20,
        first_bucket_bytes=1 << 20,
        cache_capacity=65536,
        backend="auto",
        network="",
        wire_dtype="",
        algorithm="auto",
        key=None,
        tensorflow_op="auto",
        jax_call="auto",
        torch_backend=False,
        input_wait=0.2,
        share_gpus=False,
        gpu_backend="auto",
        horovod=False,
    )


def test_the_sizes_are_those_that_fusion_itself_goes_by():
    plain = Settings()
    assert plain.fusion_threshold == batching.DEFAULT_THRESHOLD
    assert (plain.bucket_bytes, plain.first_bucket_bytes) == (buckets.DEFAULT_THRESHOLD, buckets.FIRST_THRESHOLD)


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("STALL_WARNING", "0.5", 0.5),
        ("STALL_TIMEOUT", "0", 0.0),
        ("START_TIMEOUT", "1e2", 100.0),
        ("FUSION_THRESHOLD", "1e6", 1000000),
        ("BUCKET_BYTES", "700", 700),
        ("FIRST_BUCKET_BYTES", "0", 0),
        ("CACHE_CAPACITY", "10", 10),
        ("BACKEND", "tcp", "tcp"),
        ("NETWORK", "eth1,10.0.0.0/8", "eth1,10.0.0.0/8"),
        ("WIRE_DTYPE", "bfloat16", "bfloat16"),
        ("ALGORITHM", "halving-doubling", "halving-doubling"),
        ("KEY", SECRET, SECRET.encode()),
        ("KEY", SECRET + "\udcff", SECRET.encode() + b"\xff"),
        ("TENSORFLOW_OP", "kernel", "kernel"),
        ("JAX_CALL", "ffi", "ffi"),
        ("INPUT_WAIT", "0", 0.0),
        ("AUTOTUNE", "1", True),
        ("AUTOTUNE_LOG", "a.csv", "a.csv"),
        ("AUTOTUNE_WIRE_DTYPES", "bfloat16,float16", ("bfloat16", "float16")),
        ("SHARE_GPUS", "1", True),
        ("SHARE_GPUS", "0", False),
        ("GPU_BACKEND", "staged", "staged"),
        ("HOROVOD", "1", True),
    ],
)
def test_each_variable_sets_its_field_and_no_other(variable, text, value):
    assert Settings.of({f"DISTRUN_{variable}": text}) == Settings(**{variable.lower(): value})


def test_what_is_given_is_told_from_what_is_by_default():
    assert given({"DISTRUN_BUCKET_BYTES": "5", "DISTRUN_BACKEND": "", "OTHER": "1"}) == {"bucket_bytes"}
    assert given({"DISTRUN_HOROVOD": "1", "HOROVOD_CACHE_CAPACITY": "5"}) == {"horovod", "cache_capacity"}


@pytest.mark.parametrize(
    ("variable", "text", "complaint"),
    [
        ("STALL_WARNING", "soon", "is not a number >= 0"),
        ("STALL_TIMEOUT", "-1", "is not a number >= 0"),
        ("START_TIMEOUT", "inf", "is not a number of seconds > 0"),
        ("START_TIMEOUT", "0", "is not a number of seconds > 0"),
        ("CACHE_CAPACITY", "nan", "is not a number >= 0"),
        ("BUCKET_BYTES", "1M", "is not a number of bytes"),
        ("FIRST_BUCKET_BYTES", "-5", "is not a number of bytes"),
        ("BACKEND", "gloo", "is not one of auto, shared_memory, tcp, mpi"),
        ("ALGORITHM", "star", "is not one of auto, direct, ring, halving-doubling, tree"),
        ("WIRE_DTYPE", "int2", "is not one of float16, bfloat16, int8, int4"),
        ("JAX_CALL", "pigeon", "is not one of auto, ffi, io_callback"),
        ("TENSORFLOW_OP", "xla", "is not one of auto, kernel, numpy_function"),
        ("GPU_BACKEND", "gloo", "is not one of auto, nccl, staged"),
        ("AUTOTUNE_WIRE_DTYPES", "bfloat16,int8", "is no list of float16 and bfloat16, separated by commas"),
        ("INPUT_WAIT", "1", "is not a share from 0 (off) to below 1"),
        ("SHARE_GPUS", "yes", "is neither 1 (ranks may share a GPU) nor 0"),
        ("HOROVOD", "true", "is neither 1 (this rank runs in Horovod's mode) nor 0"),
    ],
)
def test_an_impossible_value_is_one_sentence(variable, text, complaint):
    with pytest.raises(UsageError) as error:
        Settings.of({f"DISTRUN_{variable}": text})
    assert str(error.value) == f"DISTRUN_{variable}={text!r} {complaint}: correct or unset it"


def test_a_network_that_cannot_be_is_refused():
    with pytest.raises(
        UsageError, match=r"^DISTRUN_NETWORK='10\.0\.0\.0/99': '10\.0\.0\.0/99' is neither an interface nor a subnet"
    ):
        Settings.of({"DISTRUN_NETWORK": "10.0.0.0/99"})


def test_a_key_that_might_be_guessed_is_refused_and_not_shown():
    with pytest.raises(UsageError, match=r"DISTRUN_KEY has 7 characters: set it to at least 32") as error:
        Settings.of({"DISTRUN_KEY": "hunter2"})
    assert "hunter2" not in str(error.value)


def test_the_key_is_in_no_log():
    assert SECRET not in repr(Settings.of({"DISTRUN_KEY": SECRET}))


def test_the_current_settings_are_those_of_the_environment_as_it_is_now(monkeypatch):
    monkeypatch.setenv("DISTRUN_INPUT_WAIT", "0.5")
    assert settings.current().input_wait == 0.5
    monkeypatch.setenv("DISTRUN_INPUT_WAIT", "0.6")
    assert settings.current().input_wait == 0.6


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("DISTRUN_STALL_WARNNG", "did you mean DISTRUN_STALL_WARNING?"),
        ("DISTRUN_NETWORKS", "did you mean DISTRUN_NETWORK?"),
        ("DISTRUN_bucket_bytes", "did you mean DISTRUN_BUCKET_BYTES?"),
        ("DISTRUN_TIMEOUT", "did you mean DISTRUN_START_TIMEOUT?"),
        ("DISTRUN_XYZ", "docs/settings.md lists those that exist"),
    ],
)
def test_a_name_that_is_no_setting_is_told_with_the_nearest_one(name, remedy):
    assert unknown([name]) == [f"{name} is not a setting of distrun and changes nothing: {remedy}"]


def test_only_names_that_begin_like_ours_are_looked_at_and_each_is_told_once():
    contract = ["DISTRUN_" + field.name.upper() for field in fields(LaunchContract)]
    contract += ["DISTRUN_SERVER_COPIES", "DISTRUN_SERVER_GENERATION", "DISTRUN_SCRATCH", "DISTRUN_CPU_SLOT"]
    assert unknown([*VARIABLES, *contract, "PATH", "DISTRUNNING", "MY_DISTRUN_X"]) == []
    assert len(unknown(["DISTRUN_Q", "DISTRUN_P", "DISTRUN_Q"])) == 2


def test_every_setting_is_documented_and_nothing_else_is():
    page = ROOT / "docs" / "settings.md"
    rows = [line.split("|")[1] for line in page.read_text().splitlines() if line.startswith("| `DISTRUN_")]
    documented = [name for row in rows for name in re.findall(r"DISTRUN_[A-Z_]+", row)]
    assert sorted(documented) == sorted([*VARIABLES, HOSTS, ENDPOINT, SLOTS])


def test_no_other_module_reads_a_setting_from_the_environment():
    reading = re.compile(r"environ(\.get\(|\.pop\(|\[)\W*(settings\.[A-Z]|" + "|".join(VARIABLES) + ")")
    readers = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "distrun").rglob("*.py"))
        if path != Path(settings.__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if reading.search(line) or "getenv(" in line
    ]
    assert readers == []
