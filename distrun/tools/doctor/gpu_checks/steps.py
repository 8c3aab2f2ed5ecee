"""The steps of `distrun doctor --gpu` on one host with GPUs, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from distrun.runner.protocol.handshake import HostError
from distrun.tools.doctor.gpu_checks import bus_verdicts, kernel, link_verdicts, nvml, state_verdicts, xids
from distrun.tools.doctor.gpu_checks.words import unchecked
from distrun.tools.doctor.report import HostCheck

_FACTS, _COPIES, _ALLREDUCE = 60.0, 60.0, 90.0  # seconds for the probe's answers: its programs have less


def gather() -> dict[str, Any]:
    """Return what NVML and the kernel of this host tell, for the probe."""
    states = nvml.read()
    errors, refusal = xids.read()
    return {
        "nvml": asdict(states),
        "kernel": asdict(kernel.gather([gpu.place for gpu in states.gpus])),
        "xids": [asdict(error) for error in errors],
        "xids_unread": refusal,
    }


def take(ask: Callable[..., dict[str, Any]], found: dict[str, Any]) -> Iterator[HostCheck]:
    """Take the steps. `ask` asks the probe, as `ProbeClient.ask`. What it answers is added to `found`.

    Raises:
        HostError: the probe does not answer.
    """
    found.update(ask("gpu_facts", _FACTS))
    states = nvml.GpuStates.from_json(found["nvml"])
    facts, gpus = kernel.KernelFacts(**found["kernel"]), states.gpus
    if states.problem:
        yield from (unchecked(name, states.problem) for name in ("topology", "iommu", "numa", "ecc", "clocks"))
    else:
        yield link_verdicts.topology(states)
        yield bus_verdicts.iommu(facts, len(gpus))
        yield bus_verdicts.numa(facts)
        yield state_verdicts.ecc(gpus)
        yield state_verdicts.clocks(gpus)
    yield state_verdicts.mps(facts.mps, gpus)
    yield state_verdicts.xid([xids.Xid(**error) for error in found["xids"]], found["xids_unread"], gpus)
    found["copies"] = copied = _measured(ask, "gpu_copies", _COPIES)
    yield link_verdicts.copies(states, copied)
    count = len(copied.get("places", gpus))
    reason = copied.get("skipped") or ("there is one GPU" if count < 2 else "")
    found["allreduce"] = {"skipped": reason} if reason else _measured(ask, "gpu_allreduce", _ALLREDUCE, count=count)
    yield link_verdicts.allreduce(states, copied, found["allreduce"])


def _measured(ask: Callable[..., dict[str, Any]], what: str, timeout: float, **arguments: Any) -> dict[str, Any]:
    try:
        return ask(what, timeout, **arguments)
    except HostError as error:
        return {"problem": str(error)}
