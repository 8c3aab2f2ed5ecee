"""The commands that show a person the same as the doctor finds. Pure."""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote

from distrun.host.endpoints import format_endpoint
from distrun.runner.planning.ssh_config import Route

_CHECKS = "distrun.tools.doctor.gpu_checks"
_BATCH = ("-o", "BatchMode=yes")


class ShellCommands:
    """Commands for one host, to be typed on this machine."""

    def __init__(self, route: Route | None, python: str, wdir: str, node: str = "") -> None:
        """`route` is None for this machine, and if srun reaches the host, whose name there is then `node`."""
        self._route = route
        home, rest = ("~/", python[2:]) if python.startswith("~/") else ("", python)
        self._python = home + quote(rest)
        self._wdir = wdir
        self._node = node

    def step(self, name: str) -> str:
        """Return the command for a step, or "" if there is none."""
        commands: dict[str, Callable[[], str]] = {
            "name": lambda: "" if self._route is None else f"getent ahosts {quote(self._route.hostname)}",
            "tcp": self._tcp,
            "host key": self._host_key,
            "login": lambda: self.there("true"),
            "srun": lambda: self.there("hostname"),
            "python": lambda: self.there(f"{self._python} --version"),
            "distrun": lambda: self.there(f"{self._python} -m distrun.runner --version"),
            "directory": lambda: self.there(f"ls -ld {quote(self._wdir)}"),
            "clock": lambda: f"date +%s.%N; {self.there('date +%s.%N')}",
            "machine": lambda: self.there("nproc; free -m; df -h /dev/shm; ulimit -v"),
            "gpus": lambda: self.there("nvidia-smi; nvidia-smi topo -p2p r"),
            "topology": lambda: self.there("nvidia-smi topo -m; nvidia-smi nvlink -s"),
            "iommu": lambda: self.there("cat /proc/cmdline; sudo lspci -vvv | grep ACSCtl"),
            "numa": lambda: self.there("nvidia-smi topo -m; taskset -cp $$"),
            "ecc": lambda: self.there("nvidia-smi -q -d ECC"),
            "clocks": lambda: self.there("nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE"),
            "mps": lambda: self.there("nvidia-smi -q -d COMPUTE; pgrep -a nvidia-cuda-mps"),
            "xid": lambda: self.there("sudo dmesg | grep Xid"),
            "p2p": lambda: self.there(f"{self._python} -m {_CHECKS}.copies"),
            "nccl": lambda: self.there(
                f"NCCL_DEBUG=INFO {self._python} -m distrun.runner {self._python} -m {_CHECKS}.ranks"
            ),
            "network": lambda: self.there("ip -brief address"),
        }
        return commands[name]() if name in commands else ""

    def there(self, command: str) -> str:
        """Return the command for this machine that runs `command` in the host's shell."""
        if self._node:
            return f"srun --overlap --nodes=1 --ntasks=1 --nodelist={quote(self._node)} sh -c {quote(command)}"
        if self._route is None:
            return command
        return f"{self._route.ssh(*_BATCH)} {quote(command) if command != 'true' else command}"

    def _tcp(self) -> str:
        route = self._route
        if route is None:
            return ""
        if route.jump is not None:
            jump = f"{route.jump.user}@{route.jump.name}" if route.jump.user else route.jump.name
            return f"ssh -W {quote(format_endpoint(route.hostname, route.port))} {quote(jump)}"
        if route.proxy_command is not None:
            return route.proxy_command
        probe = f"exec 3<>/dev/tcp/{quote(route.hostname)}/{route.port}"
        return f"timeout {max(1, round(route.timeout))} bash -c {quote(probe)}"

    def _host_key(self) -> str:
        route = self._route
        if route is None:
            return ""
        if route.proxy_command is not None:
            return route.ssh(*_BATCH).replace("ssh ", "ssh -v ", 1) + " true"
        port = f"-p {route.port} " if route.port != 22 else ""
        scan = f"ssh-keyscan {port}{quote(route.hostname)}"
        if route.jump is not None:
            scan = f"ssh {quote(route.jump.name)} {scan}"
        return f"{scan} | ssh-keygen -lf -"
