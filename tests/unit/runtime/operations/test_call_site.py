"""Where in user code a call comes from, seen from inside the package."""

from __future__ import annotations

import _thread
import re
import sys
import threading
from pathlib import Path

import distrun
from distrun.runtime.operations.call_site import call_site, main_stack

PACKAGE = Path(distrun.__file__).parent


def call_from(filename: str, function: str = "train") -> str:
    """Return the text of `call_site` for a function of a file that calls through two functions of the package."""
    scope: dict[str, object] = {"call_site": call_site}
    source = "\n" * 4 + f"def {function}():\n    return ours()\n"
    inner = "def ours():\n    return deeper()\ndef deeper():\n    return call_site()\n"
    exec(compile(inner, str(PACKAGE / "runtime" / "engine.py"), "exec"), scope)
    exec(compile(source, filename, "exec"), scope)
    return scope[function]()  # type: ignore[operator]


def test_it_is_the_innermost_line_that_is_not_ours():
    assert call_from("/home/me/train.py") == "train.py:6 in train"


def test_directly_from_here_it_is_this_line():
    site, line = call_site(), sys._getframe().f_lineno
    assert site == f"test_call_site.py:{line} in test_directly_from_here_it_is_this_line"


def test_a_package_whose_name_begins_with_ours_is_not_ours():
    assert call_from(f"{PACKAGE}_recipes/train.py") == "train.py:6 in train"


def test_a_call_that_only_we_make_comes_from_nowhere():
    sites: list[str] = []
    done = threading.Event()
    scope = {"call_site": call_site, "sites": sites, "done": done}
    source = "def go():\n    sites.append(call_site())\n    done.set()\n"
    exec(compile(source, str(PACKAGE / "runtime" / "engine.py"), "exec"), scope)
    _thread.start_new_thread(scope["go"], ())  # unlike threading's, with no frame of Python's own below
    assert done.wait(30)
    assert sites == [""]


def test_the_stack_of_the_main_thread_can_be_seen_from_another():
    stacks: list[str] = []
    thread = threading.Thread(target=lambda: stacks.append(main_stack(20)))
    thread.start()
    thread.join()
    assert "in test_the_stack_of_the_main_thread_can_be_seen_from_another" in stacks[0]


def test_the_stack_ends_where_the_main_thread_is_and_is_as_deep_as_asked_for():
    *_, last, line = main_stack(2).splitlines()[:-2]  # without main_stack itself
    assert last.endswith("in test_the_stack_ends_where_the_main_thread_is_and_is_as_deep_as_asked_for")
    assert "main_stack(2)" in line
    for depth, stack in ((1, main_stack(1)), (6, main_stack())):
        assert len(re.findall(r"^  File ", stack, re.MULTILINE)) == depth
