"""Disagreements and impossible requests: all ranks get the same clear error, and the job goes on."""

# Functions made in a loop are called before it goes on.
# ruff: noqa: B023

import numpy as np
from refusals import refuse

import distrun

distrun.init()
me, size = distrun.rank(), distrun.size()
SOMEWHERE = "errors.py:"


def goes_on() -> None:
    assert distrun.allreduce(np.ones(3), "goes on", distrun.Sum).tolist() == [size] * 3


def disagree(call, *expected: str) -> None:
    """All ranks make a call on which they do not agree."""
    goes_on()
    text = refuse(distrun.MismatchError, "the ranks disagree about", call)
    for part in (*expected, SOMEWHERE):
        assert part in text, (part, text)
    assert len(set(distrun.allgather_object(text))) == 1, "the ranks got different texts"
    goes_on()


odd = me == size - 1  # the dissenter
last = f"rank {size - 1}"
others = "rank 0 " if size == 2 else f"ranks 0-{size - 2} "
ones = np.ones(4, np.float32)

for named in ("a tensor", None):
    what = "'a tensor'" if named else "unnamed "
    dtype = np.float64 if odd else np.float32
    disagree(lambda: distrun.allreduce(np.ones(4, dtype), named), what, "dtype", "float64", "float32", last, others)
    disagree(lambda: distrun.allreduce(np.ones(5 if odd else 4), named), what, "shapes", "[5]", "[4]", last, others)
    op = distrun.Max if odd else distrun.Sum
    disagree(lambda: distrun.allreduce(ones, named, op), what, "op", "max", "sum", last, others)
    disagree(lambda: distrun.broadcast(ones, 1 if odd else 0, named), what, "root 1", "root 0", last, others)
    disagree(
        lambda: distrun.allreduce(ones, named, prescale_factor=0.5 if odd else 2.0),
        what, "prescale 0.5", "prescale 2.0", last, others,
    )  # fmt: skip
    disagree(
        lambda: distrun.allreduce(ones, named, postscale_factor=0.5 if odd else 2.0),
        what, "postscale 0.5", "postscale 2.0", last, others,
    )  # fmt: skip
    kind = distrun.allgather if odd else distrun.allreduce
    disagree(lambda: kind(ones, named), what, "kind allgather", "kind allreduce", last, others)
    trailing = np.ones((2, 3 if odd else 4))
    disagree(lambda: distrun.allgather(trailing, named), what, "[*, 3]", "[*, 4]")
    group = [ones, ones] if odd else [ones]
    disagree(lambda: distrun.grouped_allreduce(group, named), what, "[4], [4]", "[4]", last, others)

# Also when the operation is known by a number, and when only the one that came first differs.
for _ in range(3):
    distrun.allreduce(ones, "known", distrun.Sum)
disagree(lambda: distrun.allreduce(ones[:2] if me == 0 else ones, "known", distrun.Sum), "'known'", "[2]", "[4]")
assert distrun.allreduce(ones, "known", distrun.Sum).tolist() == [size] * 4
if size > 2:
    disagree(
        lambda: distrun.allreduce(np.ones(me + 1), "three ways"), "[1]", "[2]", "[3]", "rank 0 ", "rank 1 ", "rank 2 "
    )

# Asynchronously, among others that are fine.
good = [distrun.allreduce_async(np.full(2, place), f"good.{place}", distrun.Sum) for place in range(20)]
bad = distrun.allreduce_async(np.ones(2 if odd else 1), "bad")
good += [distrun.allreduce_async(np.full(2, place), None, distrun.Sum) for place in range(20, 40)]
for _ in range(2):  # the second time it is the same error
    refuse(distrun.MismatchError, "'bad'", bad.wait)
assert "failed" in repr(bad), bad
assert [handle.wait().tolist() for handle in good] == [[place * size] * 2 for place in range(40)]

# What one rank alone can see raises on it, before anybody else hears of it.
if me == 0:
    handle = distrun.allreduce_async(ones, "in flight")
    refuse(
        distrun.UsageError, "allreduce 'in flight' is under way already", lambda: distrun.allreduce(ones, "in flight")
    )
    distrun.barrier()
else:
    distrun.barrier()  # it cannot be done before rank 0 has asked for it a second time
    handle = distrun.allreduce_async(ones, "in flight")
handle.wait()
goes_on()

frozen = np.ones(3)
frozen.flags.writeable = False
refuse(distrun.UsageError, "read-only", lambda: distrun.allreduce_(frozen))
refuse(distrun.UsageError, "read-only", lambda: distrun.broadcast_(frozen, 0))
refuse(distrun.UsageError, "read-only", lambda: distrun.grouped_allreduce_([np.ones(2), frozen]))
refuse(distrun.UsageError, "use the form without _", lambda: distrun.allreduce_([1.0, 2.0]))
for value in (
    np.array(["text"]),
    np.array([None]),
    np.zeros(2, "datetime64[s]"),
    np.zeros(2, "i4,f4"),
    np.ones(2, ">f4"),
):
    refuse(distrun.UsageError, "dtype", lambda: distrun.allreduce(value))
    refuse(distrun.UsageError, "dtype", lambda: distrun.allgather(value))
refuse(distrun.UsageError, "is not a reduce op", lambda: distrun.allreduce(ones, op="sum"))
refuse(distrun.UsageError, "is not a reduce op", lambda: distrun.allreduce(ones, op=1))
refuse(distrun.UsageError, "which is not ordered", lambda: distrun.allreduce(np.ones(2, np.complex64), op=distrun.Max))
for name in (3, ["gradient"], {}):
    refuse(distrun.UsageError, "is not a string", lambda: distrun.allreduce(ones, name=name))
    refuse(distrun.UsageError, "is not a string", lambda: distrun.allreduce_(ones, name=name))
    refuse(distrun.UsageError, "is not a string", lambda: distrun.grouped_allreduce([ones, ones], name=name))
    refuse(distrun.UsageError, "is not a string", lambda: distrun.broadcast(ones, 0, name=name))
refuse(distrun.UsageError, "too large to negotiate", lambda: distrun.allreduce(ones, name="x" * 300_000))
refuse(distrun.UsageError, "too large to negotiate", lambda: distrun.grouped_allreduce([ones] * 100_000))
refuse(distrun.UsageError, "give it to distrun.init", lambda: distrun.barrier(distrun.ProcessSet([0])))
goes_on()

# Fewer names than the others is no error here: the next test of the job's life is that it ends cleanly.
distrun.barrier(name="end")
