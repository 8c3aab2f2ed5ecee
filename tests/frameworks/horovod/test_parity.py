"""docs/parity.md tells the truth: names that work are there with Horovod's parameters, and their tests exist."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from distrun.contract import horovod

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "parity.md"
STATES = ("works", "differs", "refused")


class Row(NamedTuple):
    line: int
    modules: tuple[str, ...]
    names: tuple[str, ...]
    state: str
    text: str


def _rows() -> Iterator[Row]:
    modules: tuple[str, ...] = ()
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        if line.startswith("## "):
            modules = tuple(re.findall(r"`(horovod[\w.]*)`", line))
        elif line.startswith("| ") and not line.startswith(("| ---", "| name", "| behaviour", "| variable")):
            name, state, text = (cell.strip() for cell in line.strip("|").split(" | "))
            only_names = re.fullmatch(r"(`[^`]+`(, |$))+", name)
            names = re.findall(r"`([A-Za-z_][\w.]*)`", name) if only_names else []
            yield Row(number, modules, tuple(names), state, text)


def _signatures() -> dict[str, dict[str, str]]:
    """Return Horovod's signatures by module and name: `{"horovod.torch": {"rank": "rank()", ...}, ...}`."""
    found: dict[str, dict[str, str]] = {}
    modules: list[str] = []
    for line in Path(__file__).with_name("signatures.txt").read_text().replace("\n    ", " ").splitlines():
        if line.startswith("["):
            modules = line.strip("[]").split(", ")
        elif line and not line.startswith("#"):
            for module in modules:
                found.setdefault(module, {})[line.partition("(")[0]] = line
    return found


SIGNATURES = _signatures()
ROWS = list(_rows())
PROMISES = [
    pytest.param(module, name, row.state, id=f"{module}.{name}")
    for row in ROWS
    for module in row.modules
    for name in row.names
    if row.state != "refused"
]


@pytest.fixture(scope="module", autouse=True)
def _package() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(horovod.FOLDER)
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod"]:
        del sys.modules[name]


def _module(name: str) -> object:
    for framework in ("torch", "tensorflow", "keras"):
        if framework in name.split("."):
            pytest.importorskip(framework)
    return importlib.import_module(name)


def test_every_row_has_a_state_and_says_by_which_test_or_why():
    assert len(ROWS) > 100
    assert [row for row in ROWS if row.state not in STATES or not row.text] == []
    tested = {row.line: re.findall(r"`(tests/\S+\.py)`", row.text) for row in ROWS if row.state == "works"}
    assert [line for line, paths in tested.items() if not paths] == []
    assert [path for paths in tested.values() for path in paths if not (ROOT / path).exists()] == []


def test_every_function_of_horovods_has_a_row():
    told = {(module, name) for row in ROWS for module in row.modules for name in row.names}
    missing = [(module, name) for module in SIGNATURES for name in SIGNATURES[module] if (module, name) not in told]
    assert missing == []


@pytest.mark.parametrize(("module", "name", "state"), PROMISES)
def test_a_name_is_there_and_has_horovods_parameters_where_it_works(module, name, state):
    found = _module(module)
    namespace = {**vars(found)}
    value: Any = found
    for part in name.split("."):
        with contextlib.suppress(ImportError):  # no module, but a name in one
            importlib.import_module(f"{value.__name__}.{part}")
        value = getattr(value, part)
    if state == "works" and name in SIGNATURES.get(module, {}):
        _compare(
            value, SIGNATURES[module][name], name, namespace | {"Compression": getattr(found, "Compression", None)}
        )


def _compare(function: object, expected: str, name: str, namespace: dict[str, object]) -> None:
    """Check that a function can be called as Horovod's can; it may have more parameters behind, with defaults."""
    definition = ast.parse(f"def f{expected.removeprefix(name)}: pass").body[0]
    assert isinstance(definition, ast.FunctionDef)
    names = [argument.arg for argument in definition.args.args]
    defaults = [eval(ast.unparse(default), namespace) for default in definition.args.defaults]
    ours = list(inspect.signature(function).parameters.values())  # type: ignore[arg-type]
    positional = [each for each in ours if each.kind is each.POSITIONAL_OR_KEYWORD]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in ours)
    assert [each.name for each in positional][: len(names)] == names or takes_any, expected
    given = {each.name: each.default for each in positional}
    with_defaults = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    assert {each: given[each] for each in with_defaults if each in given} == with_defaults
    assert all(each.default is not each.empty for each in positional[len(names) :]), expected


SUBMODULES = """
torch torch.mpi_ops torch.elastic torch.elastic.state torch.elastic.sampler torch.compression torch.sync_batch_norm
torch.optimizer torch.functions tensorflow tensorflow.mpi_ops tensorflow.elastic tensorflow.compression
tensorflow.functions tensorflow.sync_batch_norm tensorflow.keras tensorflow.keras.callbacks tensorflow.keras.elastic
keras keras.callbacks keras.elastic common common.util common.basics common.exceptions common.process_sets
common.elastic data data.data_loader_base runner
"""


@pytest.mark.parametrize("name", SUBMODULES.split())
def test_a_submodule_of_horovods_can_be_imported(name):
    _module(f"horovod.{name}")


def test_a_framework_that_is_not_used_is_not_loaded():
    code = "import distrun, sys; distrun.install_as_horovod(); import horovod.{0}; print({1!r} in sys.modules)"
    for used, unused in (("torch", "tensorflow"), ("common.util", "torch"), ("data", "torch")):
        if used == "torch":
            pytest.importorskip("torch")
        command = [sys.executable, "-c", code.format(used, unused)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
        assert done.stdout == "False\n", used
