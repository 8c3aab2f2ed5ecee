"""Times an executor on Ray: its start, the first call, which joins a world, and calls of an empty function.

python benchmarks/hosts/ray_executor.py --workers 2 --calls 200
"""

from __future__ import annotations

import argparse
import statistics
import time

import ray

from distrun.ray import Executor


def join() -> int:
    """Join the world."""
    import distrun

    distrun.init()
    return distrun.size()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--calls", type=int, default=200)
    args = parser.parse_args()
    ray.init(num_cpus=args.workers, include_dashboard=False, log_to_driver=False)
    begun = time.perf_counter()
    with Executor(num_workers=args.workers) as executor:
        print(f"start of {args.workers} workers: {time.perf_counter() - begun:.2f} s")
        begun = time.perf_counter()
        executor.run(join)
        print(f"first run, which joins a world: {time.perf_counter() - begun:.2f} s")
        times = []
        for _ in range(args.calls):
            begun = time.perf_counter()
            executor.run(lambda: None)
            times.append(time.perf_counter() - begun)
        middle, worst = statistics.median(times), statistics.quantiles(times, n=20)[-1]
        print(f"run of an empty function: {middle * 1e3:.1f} ms, 95 % within {worst * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
