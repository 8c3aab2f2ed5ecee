"""The speed that a job would have on more hosts, for its report: `distrun predict` applied to its profile."""

from __future__ import annotations

from distrun.errors import UsageError
from distrun.runner.observation.prediction.forecast import forecasts
from distrun.runner.observation.prediction.link import assumptions
from distrun.runner.observation.prediction.model import work_of
from distrun.runner.observation.prediction.profile import JobProfile, MeasuredLink
from distrun.runner.observation.prediction.units import shown_rate
from distrun.runner.observation.profiling.profiler import Profiled
from distrun.runner.observation.report.summary import Scale, Scaling

FACTORS = (2, 4)
ASSUMED = MeasuredLink(1e10)
"""The assumed link between hosts for a job that had only one host."""


def scaling(profiled: Profiled, single_rank_step: float | None) -> Scaling:
    """Return the scaling of a job. `single_rank_step` has the seconds of a step on one rank alone. None = unknown."""
    profile = profiled.profile
    if profile is None:
        return Scaling(said=f"How fast the job would be on more hosts is not known: {profiled.why_not}.")
    alone = work_of(profile).alone
    try:
        scales, said = _scales(profile, single_rank_step or alone)
    except UsageError:
        return Scaling(alone, profile.seconds.step, said="The speed of the links between the hosts is not known.")
    return Scaling(alone, profile.seconds.step, scales, said)


def _scales(profile: JobProfile, alone: float) -> tuple[list[Scale], str]:
    """Return the speed now and on more hosts, and sentences about assumptions.

    Raises:
        UsageError: the speed of the links is unknown.
    """
    hosts = [factor * profile.hosts for factor in FACTORS]
    link = ASSUMED if profile.hosts == 1 else None
    assumed = assumptions(profile, link, None, None, max(hosts), profile.ranks_per_host)
    found = forecasts(profile, assumed, hosts, profile.ranks_per_host, keeps_global_batch=False)
    step = profile.seconds.step
    scales = [Scale(1, profile.hosts, profile.ranks, step, alone / step)] if step else []
    for factor, one in zip(FACTORS, found, strict=True):
        share = alone / one.seconds if one.seconds else 1.0
        relative = one.error / one.seconds if one.seconds else 0.0
        scales.append(Scale(factor, one.hosts, one.ranks, one.seconds, share, share * relative))
    notes = [note.partition(": --")[0].rstrip(".") + "." for note in assumed.notes]  # without the remedies
    if profile.hosts == 1:
        speed = shown_rate(ASSUMED.bits_per_s)
        notes.insert(0, f"This job had one host: links of {speed} between several are assumed.")
    notes.append("distrun predict FILE --link 25gbit, with this page as FILE, predicts for other links.")
    return scales, " ".join(notes)
