"""The program of a spare: imports the modules that the ranks have imported, waits, and then runs the command.

It is run by its path, with the interpreter and the interpreter's options of the command. The rest of the command is its
arguments. It imports nothing of distrun, which need not be importable there. The launcher's messages come on the
control channel. The spare reads none after `Activate`, as they are for the script. See `contract.elastic.messages`.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """Wait as a spare, and then run the command."""
    # With -P and -I, and PYTHONSAFEPATH, Python does not put the program's folder in front of the search path.
    is_safe = bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)
    if not is_safe:
        del sys.path[0]  # the folder of this file
    program = sys.argv[1:]
    activation = _wait()
    program = _here(activation["program"]) or program
    os.environ.update(activation["environ"])
    os.environ.pop("DISTRUN_SPARE", None)
    if "DISTRUN_TRIAL" in os.environ:  # in a sweep, whose scripts are not elastic
        os.environ["DISTRUN_TRIAL_FD"] = channel = os.environ.pop("DISTRUN_CONTROL_FD")
        os.write(int(channel), b'["Activated",{}]')
    slot = os.environ.pop("DISTRUN_CPU_SLOT", None) or os.environ.get("DISTRUN_SLOT", "0")
    _bind(os.environ.pop("DISTRUN_SPARE_CPUS", ""), int(slot))
    try:
        _run(program, is_safe)
    except Exception as error:  # as the interpreter does it, but without this file's frames in the traceback
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


def _wait() -> "dict[str, Any]":
    """Import the modules that the launcher names, and return its activation: variables, and perhaps another program."""
    import signal

    channel = int(os.environ["DISTRUN_CONTROL_FD"])
    for_script = (signal.SIGUSR1, signal.SIGUSR2)
    for signum in for_script:
        signal.signal(signum, signal.SIG_IGN)
    _preload(_receive(channel)["modules"])
    os.write(channel, b'["Warm",{}]')
    activation = _receive(channel)
    for signum in for_script:
        signal.signal(signum, signal.SIG_DFL)
    return activation


def _here(words: "list[str]") -> "list[str]":
    """Return `words` with the paths of shipped folders replaced by their places here, as in `shipping.arrived`."""
    import json

    trees = json.loads(os.environ.get("DISTRUN_SHIPPED", "{}")).get("trees", ())
    found = []
    for word in words:
        places = (place + word[len(source) :] for source, place in trees if f"{word}/".startswith(f"{source}/"))
        found.append(next(places, word))
    return found


def _bind(shares: str, slot: int) -> None:
    """Bind this process and its threads to the CPUs of its slot.

    Args:
        shares: the CPUs of each slot, such as `0-1;2-3`. Empty = ranks are not bound.
        slot: the slot, modulo the number of shares.
    """
    if not shares:
        return
    by_slot = shares.split(";")
    ranges = (entry.partition("-") for entry in by_slot[slot % len(by_slot)].split(","))
    cpus = {cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)}
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cpus)
        except ProcessLookupError:  # it has ended meanwhile
            continue


def _receive(channel: int) -> "dict[str, Any]":
    """Return the values of the launcher's next message."""
    import json

    message = b""
    while True:
        piece = os.read(channel, 1 << 20)
        if not piece:  # the agent is gone, and with it the job
            os._exit(1)
        message += piece[1:] if piece.startswith((b"+", b".")) else piece
        if not piece.startswith(b"+"):
            _, values = json.loads(message)
            return dict(values)


def _preload(modules: "list[str]") -> None:
    """Import `modules`. Modules in the script's own folder are not found here, and the script imports them itself."""
    import importlib

    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException:  # even SystemExit: the script may not need the module
            continue


def _run(program: "list[str]", is_safe: bool) -> None:
    """Run the command's program in a new module `__main__`.

    Args:
        program: `script args`, `-m module args` or `-c code args`.
        is_safe: whether the search path stays as it is.
    """
    import builtins
    import types

    kind, arguments = program[0], program[1:]
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __spec__=None, __doc__=None)
    sys.modules["__main__"] = module
    if kind == "-m":
        import runpy

        if not is_safe:
            sys.path.insert(0, os.getcwd())
        sys.argv[:] = ["-m", *arguments[1:]]
        runpy._run_module_as_main(arguments[0], alter_argv=True)  # type: ignore[attr-defined]  # what -m itself calls
        return
    if kind == "-c":
        if not is_safe:
            sys.path.insert(0, "")
        sys.argv[:] = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), module.__dict__)
        return
    if not is_safe:
        sys.path.insert(0, os.path.dirname(os.path.realpath(kind)))
    sys.argv[:] = program
    from importlib.machinery import SourceFileLoader

    loader = SourceFileLoader("__main__", kind)
    module.__dict__.update(__file__=kind, __loader__=loader, __cached__=None)
    with open(kind, "rb") as file:
        code = compile(file.read(), kind, "exec", dont_inherit=True)
    exec(code, module.__dict__)


main()
