"""The command line of `distrun k8s`."""

from __future__ import annotations

import secrets
import shlex
from typing import Any

import click

from distrun.errors import UsageError
from distrun.host.numerals import MOST_RANKS, MOST_SLOTS
from distrun.runner.shipping.options import LONG_START_TIMEOUT
from distrun.runner.system.click_options import option
from distrun.tools.kubernetes.bundle import pack
from distrun.tools.kubernetes.manifests import PodJob, default_name, manifests
from distrun.tools.kubernetes.yaml_text import yaml_text

_SETTINGS = {"allow_interspersed_args": False, "help_option_names": ["-h", "--help"], "max_content_width": 120}


@click.command(context_settings=_SETTINGS, options_metavar="--image IMAGE [OPTIONS]")
@option("--image IMAGE", "The image. Without --ship, distrun and the command are in it.", required=True)
@option("--hosts N", "Number of pods. Default: 1.", click.IntRange(1, MOST_RANKS), default=1)
@option(
    "-np --num-proc np N", "Ranks in all, as many in each pod. Default: --slots of each.", click.IntRange(1, MOST_RANKS)
)
@option("--gpus N", "GPUs of each pod, and ranks. Default: 0.", click.IntRange(0, MOST_SLOTS), default=0)
@option("--slots N", "Ranks of each pod. Default: one per GPU, or one.", click.IntRange(1, MOST_SLOTS))
@option("--cpus Q", "CPUs of each pod, as in 4 or 500m.")
@option("--memory Q", "Memory of each pod, as in 64Gi. What is in /dev/shm counts.")
@option("--name NAME", "Name of the job. Default: from the script, with five random digits.")
@option("-n --namespace NAME", "Namespace. Default: that of the context.")
@option("-x exports NAME=VALUE", "A variable for the ranks.", multiple=True)
@option("--wdir DIR", "Working directory in the image. Default: the image's own.")
@option("--ship ships DIR", "Bring a folder of code into the pods, and distrun.", multiple=True)
@option(
    "--bootstrap [=REQUIREMENTS]",
    "Run the ranks in an environment that is made in each pod, on top of the image's packages, with these "
    "requirements: a requirements file, or packages as in --bootstrap=transformers. Alone: what distrun itself needs.",
    is_flag=False,
    flag_value="",
)
@option("--python PATH", "The image's Python for those. Default: python3.", default="python3")
@option("--user UID", "User id. Default: 65534, nobody.", click.IntRange(1), default=65534)
@option("--writable", "Let the ranks write to all of the image, and not only to /tmp.")
@option("--gpu-resource NAME", "Kind of GPU. Default: nvidia.com/gpu.", default="nvidia.com/gpu")
@option("--elastic", "Let the job go on when a pod is lost; its replacement takes its ranks.")
@option("--agent-args ARGS", "Options of distrun agent, as in --agent-args '--keepalive 30 -v'.")
@option("--secret NAME", "Use a Secret that there is, with the entry key. Default: make one.")
@option("--apply", "Create the job, show what its ranks print, and end with its status.")
@option("--context NAME", "Context of the kubeconfig. Default: the current one.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def k8s(**options: Any) -> int:
    """Print the manifests of a job for Kubernetes, or run it: distrun k8s --image me/train --hosts 4 -- python train.py

    They are a Secret, a headless Service and an Indexed Job, whose pods need no operator, no sshd, no root and no
    capability. With --ship . the image needs only Python and the framework: ConfigMaps bring distrun and your code.
    Without --apply they are printed, for kubectl apply -f -. The Secret is among them: do not commit it, or give
    --secret. With --apply, which needs the extra kubernetes, the output of all ranks is shown, the exit status is the
    job's, and Ctrl-C deletes the job.
    """
    if options["np"] is not None:
        options["slots"] = _slots(options["np"], options["hosts"], options["slots"])
    job = _pod_job(options)
    made = manifests(job, secrets.token_hex(32))
    if not options["apply"]:
        click.echo(yaml_text(made), nl=False)
        return 0
    from distrun.tools.kubernetes.client import Client
    from distrun.tools.kubernetes.following import run

    return run(Client(options["context"], job.namespace), job.name, made)


def _slots(np: int, pods: int, slots: int | None) -> int:
    """Return the ranks of each pod for `np` ranks in all."""
    if slots not in (None, np / pods) or np % pods or np // pods > MOST_SLOTS:
        given = f"--hosts {pods}" + (f" and --slots {slots}" if slots else "")
        raise UsageError(
            f"-np {np} ranks do not go with {given}: give every pod as many, at most {MOST_SLOTS}, as in -np {2 * pods}"
            f" --hosts {pods}"
        )
    return np // pods


def _pod_job(options: dict[str, Any]) -> PodJob:
    command: tuple[str, ...] = options["command"]
    if not command:
        raise UsageError(
            "there is no command to run in the pods: give one after the options, as in distrun k8s --image me/train "
            "-- python train.py"
        )
    try:
        more = shlex.split(options["agent_args"] or "")
    except ValueError as error:
        raise UsageError(f"--agent-args {options['agent_args']!r} cannot be split into words: {error}") from None
    has_environment = options["bootstrap"] is not None
    # A pod's environment may take long to create. --agent-args come later on the command line, and may override this.
    waits = ("--start-timeout", f"{LONG_START_TIMEOUT:g}") if has_environment else ()
    is_brought = options["ships"] or has_environment
    bundle = pack(options["ships"], options["bootstrap"], options["wdir"]) if is_brought else None
    names = ("image", "command", "hosts", "gpus", "slots", "cpus", "memory", "namespace", "secret", "exports", "wdir")
    given = {name: options[name] for name in (*names, "user", "gpu_resource", "python")}
    return PodJob(
        name=options["name"] or default_name(command, secrets.token_hex(3)[:5]),
        is_writable=options["writable"],
        agent_options=(*(("--elastic",) if options["elastic"] else ()), *waits, *more),
        bundle=bundle,
        **given,
    )
