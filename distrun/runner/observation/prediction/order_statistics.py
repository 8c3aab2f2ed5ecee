"""The expected delay of the slowest of many ranks, for which all ranks wait in every step.

The computing times of the ranks are modelled as independent draws from one normal distribution, and the slowest of n as
the expectation of their maximum. It has no closed form. G. Blom's approximation (Statistical Estimates and Transformed
Beta Variables, 1958) errs by less than 2 % of a standard deviation up to 10,000 draws. J. Chen and others found such
delays in synchronous training (Revisiting Distributed Synchronous SGD, 2016, arXiv 1604.00981). Their distribution has
a longer tail than the normal one, which the error bar allows for.
"""

from __future__ import annotations

from statistics import NormalDist


def slowest(count: int) -> float:
    """Return the expected maximum of `count` standard normal draws: 0 for one, 1.5 for 9, 3.0 for 512."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0
