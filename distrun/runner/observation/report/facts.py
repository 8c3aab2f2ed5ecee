"""The facts about a job that do not change while it runs: its settings and versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import metadata

from distrun import __version__
from distrun.contract.launch import PREFIX
from distrun.contract.settings import Settings
from distrun.errors import UsageError
from distrun.runner.planning.plan import LaunchPlan

_DISTRIBUTIONS = ("numpy", "torch", "tensorflow", "tensorflow-cpu", "keras", "tf_keras", "jax", "optax", "mpi4py")


def settings_of(plan: LaunchPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the ranks that differ from the defaults, by their variables, without secrets.

    Args:
        plan: the plan of the job.
        environ: the variables of the launcher, which ranks on its machine inherit.
    """
    variables = dict(environ)
    for agent in plan.agents[:1]:
        variables |= agent.environ
    try:
        chosen = Settings.of(variables)
    except UsageError:  # the ranks report it
        return {}
    return {
        PREFIX + entry.name.upper(): str(int(value) if isinstance(value, bool) else value)
        for entry in fields(chosen)
        if entry.repr and (value := getattr(chosen, entry.name)) != entry.default
    }


def chosen(autotuned: Sequence[str]) -> dict[str, str]:
    """Return the choices of autotuning as rows for the table of settings, in order."""
    if len(autotuned) == 1:
        return {"autotuned": autotuned[0]}
    return {f"autotuned, {place}": text for place, text in enumerate(autotuned, 1)}


def versions() -> dict[str, str]:
    """Return the versions of the software in the launcher's own environment."""
    found = {"distrun": __version__, "Python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    system = os.uname()
    return found | {"system": f"{system.sysname} {system.release} {system.machine}, {os.cpu_count()} CPUs"}
