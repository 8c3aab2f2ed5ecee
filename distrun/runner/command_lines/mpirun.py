"""The command lines of mpirun and mpiexec: the flags of Open MPI, MPICH and Intel MPI together."""

from __future__ import annotations

from dataclasses import replace

from distrun.errors import UsageError
from distrun.runner.command_lines.table import Becomes, Holds, Ignored, Program, Refused, Translation, flag
from distrun.runner.command_lines.translate import one_of, whole

_LIBRARIES = Ignored("they tune the libraries of an MPI, which is not used")
_INSTALLED = Ignored("the MPI that is installed is not used")
_PLAN = Ignored("--dry-run prints the plan")
_ORDER = Ignored("the ranks of a host are numbered one after the other")
_DAEMONS = Ignored("there are no daemons of an MPI")
_COPY = Refused("files are not copied to other hosts: put them there first")
_SOME_VARIABLES = Refused("ranks on this machine have all variables: start distrun by env -i, with those you want")
_RECOVERY = Refused("the first rank that fails ends the job: leave it out")
_APPS = "one job runs one program: let the program look at its rank, or start two jobs"
_ORDERS = ("slot", "core", "hwthread", "socket", "package", "numa", "board", "l1cache", "l2cache", "l3cache")


def _mapped(text: str) -> list[str] | Ignored:
    """Convert slot, node, socket or ppr:2:node, perhaps followed by :OVERSUBSCRIBE or :PE=4."""
    words = text.lower().split(":")
    options = ["--oversubscribe"] if "oversubscribe" in words else []
    options += ["--bind-to", "core"] if any(word.startswith("pe=") for word in words) else []
    words = [word for word in words if word not in ("oversubscribe", "nooversubscribe") and not word.startswith("pe=")]
    match words:
        case ["ppr", number, "node"]:
            return [*options, "--ranks-per-host", str(whole(number))]
        case ["ppr", *_]:
            raise UsageError("only ppr:N:node is understood: give --ranks-per-host N")
        case ["node"]:
            return [*options, "--map-by", "node"]
        case ["slot"] | []:
            return options
        case [unit] if unit in _ORDERS:
            return options or _ORDER
    raise UsageError("allowed are slot, node and ppr:N:node: give one of them, or leave it out")


def _ranked(text: str) -> list[str] | Ignored:
    if text.lower().partition(":")[0] == "node":
        return ["--map-by", "node"]
    one_of(text.partition(":")[0], *_ORDERS, "fill", "span")
    return _ORDER


def _bound(text: str) -> list[str]:
    unit = text.lower().partition(":")[0]
    return ["--bind-to", "socket" if unit == "package" else one_of(unit, "none", "core", "socket", "numa")]


def _parameter(name: str, value: str) -> list[str] | Ignored:
    if name in ("btl_tcp_if_include", "oob_tcp_if_include"):
        return ["--network", value]
    if name in ("plm_rsh_args", "plm_ssh_args"):
        raise UsageError("options of ssh are given as --ssh-port, --ssh-identity-file and --ssh-option K=V")
    return _LIBRARIES


def _output(text: str) -> list[str]:
    """Convert Open MPI 5's tag,timestamp,dir=DIR."""
    options: list[str] = []
    for word in text.split(","):
        name, _, value = word.partition("=")
        if name in ("dir", "file"):
            options += ["--output-dir", value.partition(":")[0]]
        elif name in ("tag", "rank", "timestamp"):
            options.append("--prefix-output-with-timestamp" if name == "timestamp" else "--tag-output")
        else:
            raise UsageError(f"{word!r} is not understood: allowed are tag, timestamp and dir=DIR")
    return options


def _launcher(name: str) -> list[str]:
    known = {"ssh": ["--launcher", "ssh"], "rsh": ["--launcher", "ssh"], "slurm": ["--launcher", "srun"]}
    return known[one_of(name, *known, "fork")] if name.lower() != "fork" else []


def _variables(names: str) -> list[str]:
    return [word for name in names.split(",") for word in ("-x", name)]


def _finish(translation: Translation) -> Translation:
    """Refuse several programs, and give hosts without a number one slot if the number of ranks is not given."""
    if ":" in translation.command:
        raise UsageError(f"mpirun ... : ... starts several programs: {_APPS}")
    options = translation.options
    decides = {"-np", "--ranks-per-host", "--version", "--slots"}
    if "--hosts" in options and not decides & set(options):
        options = (*options, "--slots", "1")
    return Translation(options, translation.command, translation.ignored)


PROGRAM = Program(
    "mpirun",
    (
        # processes and their places
        flag("-n -np -c N", Becomes("-np {}")),
        flag("-H -host -hosts LIST", Becomes("--hosts {}", joined=True)),
        flag("-hostfile -machinefile -machine -default-hostfile -f FILE", Becomes("--hostfile {}")),
        flag("-N -npernode -ppn -perhost -grr N", Becomes("--ranks-per-host {}")),
        flag("-pernode", Becomes("--ranks-per-host 1")),
        flag("-npersocket N", Refused("give the ranks of a host by --ranks-per-host N")),
        flag("-map-by UNIT", Becomes("--map-by node, --ranks-per-host N", _mapped)),
        flag("-rank-by UNIT", Becomes("--map-by node", _ranked)),
        flag("-bynode -rr", Becomes("--map-by node")),
        flag("-byslot", Becomes("--map-by slot")),
        flag("-bycore -bysocket", _ORDER),
        flag("-oversubscribe", Becomes("--oversubscribe")),
        flag("-nooversubscribe", Holds("it is the default")),
        flag("-nolocal", Refused("list the hosts that you want with -H")),
        flag("-rankfile -rf FILE", Refused("list hosts in the order of the ranks with -H, and give --bind-to")),
        flag("-app -configfile FILE", Refused(_APPS)),
        flag("-launcher -bootstrap NAME", Becomes("--launcher ssh|srun", _launcher)),
        flag("-launcher-exec -bootstrap-exec PATH", Ignored("ssh is spoken without a program, and srun found on PATH")),
        flag("-bootstrap-exec-args ARGS", Refused("give --ssh-port, --ssh-identity-file and --ssh-option K=V")),
        flag("-rmk NAME", Ignored("the scheduler is found")),
        # binding
        flag("-bind-to -binding UNIT", Becomes("--bind-to none|core|socket|numa", _bound)),
        flag("-bind-to-core", Becomes("--bind-to core")),
        flag("-bind-to-socket", Becomes("--bind-to socket")),
        flag("-bind-to-none", Becomes("--bind-to none")),
        flag("-report-bindings", Becomes("--report-bindings")),
        flag("-cpus-per-proc -cpus-per-rank N", Ignored("--bind-to core divides all cores")),
        flag("-use-hwthread-cpus", Holds("slots are counted by hardware threads")),
        flag("-cpu-set -cpu-list LIST", Refused("start distrun by taskset -c LIST, and give --bind-to core")),
        flag("-membind POLICY", Ignored("memory is where the rank that first touches it runs")),
        flag("-topolib NAME", _LIBRARIES),
        # environment
        flag("-x NAME[=VALUE]", Becomes("-x {}")),
        replace(flag("-genv -env NAME VALUE", Becomes("-x {}={}")), one_word=True),
        flag("-genvlist -envlist LIST", Becomes("-x NAME for each", _variables)),
        flag("-genvall -envall", Becomes("-x *")),
        flag("-unset-env NAME", _SOME_VARIABLES),
        flag("-prepend-env -append-env NAME VALUE", Refused("give the whole value with -x NAME=VALUE")),
        flag("-genvnone -envnone", _SOME_VARIABLES),
        flag("-genvexcl -envexcl LIST", _SOME_VARIABLES),
        flag("-wdir -wd DIR", Becomes("--wdir {}")),
        flag("-path DIR", Refused("programs are looked for on PATH: give the program's path, or -x PATH=...")),
        flag("-prefix DIR", _INSTALLED),
        flag("-noprefix", _INSTALLED),
        flag("-tmpdir DIR", _INSTALLED),
        flag("-preload-binary", _COPY),
        flag("-preload-files FILES", _COPY),
        # output
        flag("-tag-output -prepend-rank -l", Becomes("--tag-output")),
        flag("-timestamp-output", Becomes("--prefix-output-with-timestamp")),
        flag("-output-filename DIR", Becomes("--output-dir {}")),
        flag("-output LIST", Becomes("--tag-output, --output-dir DIR", _output)),
        flag("-outfile-pattern -errfile-pattern PATTERN", Refused("give --output-dir DIR")),
        flag("-prepend-pattern PATTERN", Refused("give --tag-output or --prefix-output-with-timestamp")),
        flag("-merge-stderr-to-stdout", Ignored("2>&1 behind the command merges them")),
        flag("-ordered-output", Holds("lines are never mixed")),
        flag("-print-all-exitcodes", Ignored("--verbose prints them")),
        flag("-stdin -s RANK", Becomes("--stdin {}")),
        flag("-xterm RANKS", Refused("give --output-dir DIR, or --stdin RANK for a debugger")),
        flag("-q -quiet", Becomes("--quiet")),
        flag("-v -verbose", Becomes("--verbose")),
        flag("-V -version -info", Becomes("--version")),
        flag("-display-map -display-allocation -display-devel-map -display-topo -print-rank-map", _PLAN),
        flag("-display LIST", _PLAN),
        flag("-do-not-launch", Becomes("--dry-run")),
        # the rest
        flag("-allow-run-as-root", Holds("root may start jobs")),
        flag("-timeout S", Becomes("--timeout {}")),
        flag("-spawn-timeout S", Becomes("--start-timeout {}")),
        flag("-forward-signals LIST", Ignored("SIGUSR1 and SIGUSR2 are passed on to the ranks")),
        flag("-launch-agent COMMAND", Refused("give the Python of other hosts with --python PATH")),
        flag("-debug -gdb -tv -stop-on-exec", Refused("start the debugger in the ranks, and give --stdin RANK")),
        flag("-report-pid -report-uri FILE", Refused("start distrun in the background, as in distrun ... & echo $!")),
        flag("-report-state-on-timeout -get-stack-traces", Ignored("a rank that others wait for is reported")),
        flag(
            "-mca -gmca -omca -prtemca -pmixmca -gprtemca -gpmixmca NAME VALUE", Becomes("--network LIST", _parameter)
        ),
        flag("-am -tune FILE", _LIBRARIES),
        flag("-iface INTERFACE", Becomes("--network {}")),
        flag("-enable-recovery -continuous -disable-auto-cleanup", _RECOVERY),
        flag("-max-restarts N", _RECOVERY),
        flag("-disable-recovery", Holds("the first rank that fails ends the job")),
        flag("-debug-daemons -leave-session-attached -skip-launch-node -enable-x -disable-x", _DAEMONS),
        flag("-no-ready-msg -show-progress -report-child-jobs-separately -hetero-nodes -no-aggregate-help", _DAEMONS),
        flag("-stream-buffering N", Ignored("PYTHONUNBUFFERED is set")),
        flag("-with-ft -runtime-options -gpu-support VALUE", _LIBRARIES),
        flag("-disable-hostname-propagation -order-nodes -check_mpi -ilp64 -silent-abort", _DAEMONS),
        flag("-personality -localhost -branch-count -usize -nameserver -pmi-port -demux VALUE", _DAEMONS),
    ),
    defaults=("--no-tag-output", "--stdin", "0", "--openmpi-env"),
    any_dashes=True,
    finish=_finish,
)
