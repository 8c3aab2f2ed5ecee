"""Where in user code a call comes from, seen from inside the package."""

from __future__ import annotations

import _thread
import re
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process.calls import DEADLINE, started

import distrun
from distrun.runtime.operations.call_site import call_site, main_stack

PACKAGE = Path(distrun.__file__).parent


INSTALLED = sysconfig.get_path("purelib")
STANDARD = sysconfig.get_path("stdlib")


def chain(*files: str, **scope: object) -> Callable[[], object]:
    """Return a function whose result is that of `last`, which it calls through a function of each of these files."""
    callee = "last"
    for place, file in reversed(list(enumerate(files))):
        path, _, module = file.partition(" of ")
        name = f"function{place}"
        space = {**scope, "__name__": module}
        exec(compile(f"def {name}():\n    return {callee}()\n", path, "exec"), space)
        scope[name], callee = space[name], name
    return scope[callee]


OURS = str(PACKAGE / "runtime" / "engine.py")


def call_in_a_thread(*files: str) -> str:
    """Return it for a thread in which is nothing but these functions: with no frame of Python's own below."""
    sites: list[str] = []
    done = threading.Event()
    scope: dict[str, object] = {"call_site": call_site, "sites": sites, "done": done}
    exec(compile("def last():\n    sites.append(call_site())\n    done.set()\n", OURS, "exec"), scope)
    _thread.start_new_thread(chain(*files, last=scope["last"]), ())
    assert done.wait(60)
    return sites[0]


def test_directly_from_here_it_is_this_line():
    site, line = call_site(), sys._getframe().f_lineno
    assert site == f"test_call_site.py:{line} in test_directly_from_here_it_is_this_line"


@pytest.mark.parametrize(
    "files",
    [
        ("/home/me/train.py", f"{PACKAGE}/torch/optimizer.py"),
        (f"{PACKAGE}_recipes/train.py",),  # a package whose name begins with ours is not ours
        *(
            ("/home/me/train.py", library, library)
            for library in (
                *(f"{INSTALLED}/trainer/loop.py", f"{STANDARD}/contextlib.py"),
                *("<frozen runpy>", "/src/pytorch/a.py of torch.nn"),
            )
        ),
    ],
)
def test_it_is_the_innermost_line_that_is_neither_ours_nor_a_librarys(files):
    assert chain(*files, OURS, last=call_site)() == "train.py:2 in function0"


def test_where_all_is_installed_it_is_the_innermost_line_that_is_of_no_framework():
    framework = f"{INSTALLED}/torch/optim/sgd.py of torch.optim.sgd"
    files = ("<frozen runpy>", f"{INSTALLED}/trainer/main.py", f"{INSTALLED}/trainer/loop.py", framework)
    assert call_in_a_thread(*files, f"{STANDARD}/contextlib.py") == "loop.py:2 in function2"


def test_it_is_looked_for_from_a_frame_that_is_given():
    frame = chain("/home/me/train.py", "/src/a.py of torch", last=sys._getframe)()
    assert call_site(frame) == "train.py:2 in function0"


def test_a_thread_without_user_code_works_for_the_main_thread():
    site = call_in_a_thread("/src/a.py of torch", OURS)
    assert site.startswith("test_call_site.py:")
    assert site.endswith(" in call_in_a_thread")


def test_the_stack_of_the_main_thread_can_be_seen_from_another():
    assert "in test_the_stack_of_the_main_thread_can_be_seen_from_another" in started(main_stack, 20).result(DEADLINE)


def test_the_stack_ends_where_the_main_thread_is_and_is_as_deep_as_asked_for():
    *_, last, line = main_stack(2).splitlines()[:-2]  # without main_stack itself
    assert last.endswith("in test_the_stack_ends_where_the_main_thread_is_and_is_as_deep_as_asked_for")
    assert "main_stack(2)" in line
    for depth, stack in ((1, main_stack(1)), (6, main_stack())):
        assert len(re.findall(r"^  File ", stack, re.MULTILINE)) == depth
