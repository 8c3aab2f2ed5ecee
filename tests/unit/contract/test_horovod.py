"""Horovod's mode: its variables, and the package that stands for ours."""

import importlib
import logging
import pickle
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

import distrun
from distrun.contract import horovod, settings
from distrun.contract.launch import LaunchContract
from distrun.contract.settings import Settings
from distrun.errors import CollectiveError, MismatchError, UsageError

ON = {"DISTRUN_HOROVOD": "1"}


@pytest.fixture
def package(monkeypatch):
    """Imports a module of our `horovod`, which is forgotten afterwards."""
    monkeypatch.syspath_prepend(horovod.FOLDER)
    yield importlib.import_module
    _forget()


def _forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod"]:
        del sys.modules[name]


# Variables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "fields"),
    [
        ({"FUSION_THRESHOLD": "1024"}, {"fusion_threshold": 1024, "bucket_bytes": 1024}),
        ({"CACHE_CAPACITY": "7"}, {"cache_capacity": 7}),
        ({"STALL_CHECK_TIME_SECONDS": "5"}, {"stall_warning": 5.0}),
        ({"STALL_SHUTDOWN_TIME_SECONDS": "9"}, {"stall_timeout": 9.0}),
        (
            {"STALL_CHECK_DISABLE": "1", "STALL_CHECK_TIME_SECONDS": "5", "STALL_SHUTDOWN_TIME_SECONDS": "9"},
            {"stall_warning": 0.0, "stall_timeout": 0.0},
        ),
        ({"STALL_CHECK_DISABLE": "0", "STALL_CHECK_TIME_SECONDS": "5"}, {"stall_warning": 5.0}),
        ({"GLOO_TIMEOUT_SECONDS": "90"}, {"start_timeout": 90.0}),
        ({"GLOO_TIMEOUT_SECONDS": "90", "START_TIMEOUT": "80"}, {"start_timeout": 80.0}),
        ({"GLOO_IFACE": "eth1"}, {"network": "eth1"}),
        ({"AUTOTUNE": "1", "AUTOTUNE_LOG": "f"}, {"autotune": True, "autotune_log": "f"}),
        ({"AUTOTUNE": "0"}, {"autotune": False}),
        ({"LOG_LEVEL": "ERROR"}, {"log_level": "error"}),
        ({"LOG_HIDE_TIME": "0"}, {"log_time": True}),
        ({"LOG_HIDE_TIME": "1"}, {"log_time": False}),
        ({"TIMELINE": "t.json", "TIMELINE_MARK_CYCLES": "1"}, {"timeline_mark_cycles": True}),
        ({"FUSION_THRESHOLD": "", "CYCLE_TIME": "5"}, {}),
    ],
)
def test_a_variable_of_horovods_sets_the_field_of_that_meaning_in_its_mode_only(variables, fields):
    environ = {f"HOROVOD_{name}": text for name, text in variables.items()}
    assert Settings.of({**ON, **environ}) == replace(Settings(horovod=True), **fields)
    assert Settings.of(environ) == Settings()


@pytest.mark.parametrize(("value", "file"), [("t.json", "t.json"), ("DYNAMIC", ""), ("", "")])
def test_horovods_timeline_has_a_file_unless_the_script_starts_it(value, file):
    assert horovod.timeline_file({**ON, "HOROVOD_TIMELINE": value}) == file
    assert horovod.timeline_file({"HOROVOD_TIMELINE": value}) == horovod.timeline_file(ON) == ""


def test_a_variable_of_ours_wins_over_horovods():
    environ = {**ON, "HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "DISTRUN_STALL_WARNING": "6"}
    assert Settings.of(environ).stall_warning == 6


def test_an_impossible_value_is_told_by_horovods_name():
    with pytest.raises(UsageError, match=r"^HOROVOD_STALL_CHECK_TIME_SECONDS='soon' is not a number >= 0"):
        Settings.of({**ON, "HOROVOD_STALL_CHECK_TIME_SECONDS": "soon"})


def test_what_changes_nothing_is_told_with_the_reason_in_horovods_mode_only():
    environ = {"HOROVOD_CYCLE_TIME": "1", "HOROVOD_NUM_NCCL_STREAMS": "2", "HOROVOD_FUSION_TRESHOLD": "5"}
    silent = ["FUSION_THRESHOLD", "RANK", "LOCAL_SIZE", "GPU_OPERATIONS", "WITH_PYTORCH", "STALL_CHECK_DISABLE"]
    told = horovod.without_effect({**ON, **environ, **{f"HOROVOD_{name}": "1" for name in [*silent, "TIMELINE"]}})
    assert [line.partition(" ")[0] for line in told] == sorted(environ)
    assert told[1].startswith("HOROVOD_FUSION_TRESHOLD changes nothing: Horovod has no variable of this name")
    assert "HOROVOD_CYCLE_TIME changes nothing: operations start when the last rank has submitted them" in told[0]
    assert horovod.without_effect(environ) == []


def test_every_variable_in_the_documentation_is_honoured_or_has_a_reason():
    page = (Path(__file__).parents[3] / "docs" / "coming-from-horovod.md").read_text()
    for field, names in horovod._HONOURED.items():
        assert hasattr(Settings(), field)
        assert all(f"`{name}`" in page for name in names)


def test_the_log_has_the_level_and_the_time_that_are_asked_for(caplog):
    from distrun.runtime.world import world

    log = logging.getLogger("distrun")
    before = log.level, [handler.formatter for handler in log.handlers]
    try:
        world._adjust_log(Settings.of({**ON, "HOROVOD_LOG_LEVEL": "FATAL", "HOROVOD_LOG_HIDE_TIME": "0"}))
        assert log.level == logging.CRITICAL
        assert all("asctime" in handler.formatter._fmt for handler in log.handlers)
    finally:
        log.setLevel(before[0])
        for handler, formatter in zip(log.handlers, before[1], strict=True):
            handler.setFormatter(formatter)


def test_a_rank_is_told_who_it_is_by_horovods_names():
    contract = LaunchContract("job", "key", 3, 4, 1, 2, 1, 2, "h2", "h1", 1)
    assert horovod.rank_variables(contract) == {
        "HOROVOD_HOSTNAME": "h2",
        "HOROVOD_RANK": "3",
        "HOROVOD_SIZE": "4",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
    }


# The package ----------------------------------------------------------------------------------------------------------


def test_our_package_comes_first_on_the_path_once_and_in_horovods_mode_only():
    path = f"/mine:{horovod.FOLDER}"
    assert horovod.search_path({**ON, "PYTHONPATH": path}) == {"PYTHONPATH": f"{horovod.FOLDER}:/mine"}
    assert horovod.search_path(ON) == {"PYTHONPATH": horovod.FOLDER}
    assert horovod.search_path({"PYTHONPATH": "/mine"}) == {}


def test_without_the_mode_there_is_no_horovod():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("horovod")


def test_installing_makes_the_import_find_ours_and_turns_the_mode_on(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("DISTRUN_HOROVOD", "0")
    horovod.install_as_horovod()
    try:
        found = importlib.import_module("horovod")
        horovod.install_as_horovod()  # again, and after the import: nothing new
        assert Path(found.__file__).parents[1] == Path(horovod.FOLDER)
        assert sys.path.count(horovod.FOLDER) == 1
        assert settings.current().horovod
    finally:
        _forget()


def test_installing_is_refused_when_another_horovod_was_imported(monkeypatch):
    other = types.ModuleType("horovod")
    other.__file__ = "/site-packages/horovod/__init__.py"
    monkeypatch.setitem(sys.modules, "horovod", other)
    path = list(sys.path)
    with pytest.raises(UsageError, match=r"another horovod has been imported already, from /site-packages/horovod"):
        horovod.install_as_horovod()
    assert sys.path == path


def test_the_version_is_one_that_scripts_accept_and_that_says_whose_it_is(package):
    from packaging.version import Version

    version = package("horovod").__version__
    assert Version(version) >= Version("0.28.1")
    assert Version(version).local == "distrun"


def test_horovods_exceptions_catch_ours_and_survive_pickling(package):
    exceptions = package("horovod.common.exceptions")
    assert exceptions.HorovodInternalError is CollectiveError
    assert issubclass(MismatchError, exceptions.HorovodInternalError)
    assert pickle.loads(pickle.dumps(exceptions.HostsUpdatedInterrupt(True))).skip_sync is True
    mismatch = pickle.loads(pickle.dumps(exceptions.HorovodVersionMismatchError("torch", "1", "2")))
    assert (mismatch.name, mismatch.version, mismatch.installed_version) == ("torch", "1", "2")


def test_horovods_helpers_do_what_theirs_do(package, monkeypatch):
    util = package("horovod.common.util")
    assert util.is_version_greater_equal_than("2.10.1", "2.4.0")
    assert not util.is_version_greater_equal_than("2.3.9", "2.4.0")
    with pytest.raises(ValueError, match=r"'2.4' has not three numbers"):
        util.is_version_greater_equal_than("2.10.1", "2.4")
    calls = []
    assert [util._cache(calls.append)(1) for _ in range(2)] == [None, None]
    cached = util._cache(lambda *given: calls.append(given) or len(calls))
    assert cached(1, 2) == cached(1, 2) == len(calls)
    assert [util.is_iterable(value) for value in ([], "", 3)] == [True, True, False]
    average = util.get_average_backwards_compatibility_fun(distrun)
    assert (average(None, None), average(None, False), average(distrun.Min, None)) == (
        distrun.Average,
        distrun.Sum,
        distrun.Min,
    )
    env = package("horovod.runner.common.util.env")
    assert (env.is_exportable("OLDPWD"), env.is_exportable("HOME"), env.is_kubeflow_mpi()) == (False, True, False)
    assert env.get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    with pytest.raises(RuntimeError, match="only one of OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE is set"):
        env.get_env_rank_and_size()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert env.get_env_rank_and_size() == (2, 4)


def test_horovods_lists_of_hosts_and_waiting_times(package, tmp_path):
    hosts = package("horovod.runner.common.util.hosts")
    (tmp_path / "hosts").write_text("h1 slots=2\n\nh2 slots=1\n")
    listed = hosts.parse_hosts(hosts.parse_host_files(tmp_path / "hosts"))
    assert listed == [hosts.HostInfo("h1", 2), hosts.HostInfo("h2", 1)]
    places = hosts.get_host_assignments(listed, 1)
    assert [tuple(place)[1:4] for place in places] == [(0, 0, 0), (1, 1, 0), (2, 0, 1)]
    assert [(place.size, place.local_size, place.cross_size) for place in places] == [(3, 2, 2), (3, 2, 1), (3, 1, 2)]
    assert len(hosts.get_host_assignments(listed, 1, 2)) == 2
    with pytest.raises(ValueError, match="3 slots are fewer than the 4 ranks"):
        hosts.get_host_assignments(listed, 4)
    timeout = package("horovod.runner.common.util.timeout")
    timeout.Timeout(60, "{activity}").check_time_out_for("nothing")
    with pytest.raises(timeout.TimeoutException, match="starting took -1 s"):
        timeout.Timeout(-1, "{activity} took {timeout} s").check_time_out_for("starting")


def test_gloo_is_built_in_horovods_mode(monkeypatch):
    monkeypatch.setenv("DISTRUN_HOROVOD", "0")
    assert not distrun.runtime.world.capabilities.gloo_built()
    monkeypatch.setenv("DISTRUN_HOROVOD", "1")
    assert distrun.runtime.world.capabilities.gloo_built()


def test_elastic_names_are_there(package):
    elastic = package("horovod.common.elastic")
    distrun.init()
    state = elastic.ObjectState(distrun.broadcast_object, distrun.rank, epoch=1)
    elastic.notification_manager.init()
    elastic.notification_manager.register_listener(state)
    assert elastic.run(lambda state: state.epoch)(state) == 1
    assert elastic.run_fn(lambda state, more: state.epoch + more, distrun.shutdown)(state, 1) == 2
    elastic.notification_manager.remove_listener(state)
    distrun.shutdown()


@pytest.mark.parametrize("name", ["mxnet"])
def test_a_module_that_is_not_offered_is_an_import_error_with_the_reason(package, name):
    with pytest.raises(ImportError, match=rf"^horovod\.{name}: "):
        package(f"horovod.{name}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"min_np": 1, "max_np": 1}, "np=2 is not between min_np=1 and max_np=1"),
        ({"host_discovery_script": "./hosts"}, "hosts_from='./hosts' cannot be executed"),
        ({"use_mpi": True}, "use_mpi=True cannot be"),
        ({"mpi_args": "-v"}, "mpi_args='-v' cannot be"),
    ],
)
def test_run_refuses_what_it_cannot_do(package, arguments, sentence):
    with pytest.raises(UsageError, match=sentence):
        package("horovod").run(print, num_proc=2, **arguments)


# Loaders of data ------------------------------------------------------------------------------------------------------


@pytest.fixture
def loader(package):
    """A class of loaders that fetch ahead; it counts its epochs, and fails in epoch `fails`."""
    data = package("horovod.data")

    class Numbers(data.BaseDataLoader):
        def __init__(self, count, fails=0):
            self.count, self.fails, self.epochs = count, fails, 0

        def __len__(self):
            return self.count

        def _iterate(self):
            self.epochs += 1
            if self.epochs == self.fails:
                raise ValueError("no data")
            yield from range(self.count)

        def _process_batch(self, batch):
            return batch * 10

    class Ahead(data.AsyncDataLoaderMixin, Numbers):
        pass

    return Ahead


@pytest.mark.parametrize("ahead", [0, 1, 64])
def test_a_loader_yields_each_batch_once_per_epoch(loader, ahead):
    numbers = loader(ahead, False, 3)
    assert [list(numbers) for _ in range(3)] == [[0, 10, 20]] * 3
    numbers.close_async_loader()
    assert list(numbers) == [0, 10, 20]
    numbers.close_async_loader()


def test_what_a_loader_raises_ahead_is_raised_where_its_batches_are_asked_for(loader):
    numbers = loader(async_loader_queue_size=64, count=2, fails=2)
    assert list(numbers) == [0, 10]
    with pytest.raises(ValueError, match="no data"):
        list(numbers)
    numbers.close_async_loader()
