"""Gradient settings: how the gradients of a training step are reduced, checked in one place for all framework faces.

They are here and not in `tensor_fusion`, because that package is below the runtime and must not import `ReduceOp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distrun.errors import UsageError
from distrun.runtime.collectives.call import Call
from distrun.runtime.collectives.compressors import Compression, Compressor, wire_type
from distrun.runtime.operations.reduction import Average, ReduceOp, Sum, check_op
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.tensor_fusion.low_rank import rank_of

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class GradientSettings:
    """How gradients are reduced. The `DistributedOptimizer` of each face explains the settings.

    Raises:
        UsageError: `op` is not a reduce op, or `predivide` does not fit it.
    """

    op: ReduceOp = Average
    predivide: float = 1.0
    """A value f divides gradients by f before they are summed, and by size / f afterwards."""
    wire: str = ""
    """The type in which elements travel between hosts, or the name of an approximation. Empty: the job's setting."""
    sparse_as_dense: bool = False
    process_set: ProcessSet = global_process_set
    compression: Compressor = Compression.none
    """Called for dense gradients if it is the user's own; otherwise `wire` stands for it."""

    @classmethod
    def of(
        cls,
        op: ReduceOp,
        gradient_predivide_factor: float,
        compression: Compressor,
        sparse_as_dense: bool = False,
        process_set: ProcessSet = global_process_set,
        **more: Any,
    ) -> Self:
        """Return the settings for these arguments of a user; `more` are fields of a subclass.

        Raises:
            UsageError: an argument is impossible.
        """
        wire = wire_type(compression, of_gradients=True)
        return cls(op, float(gradient_predivide_factor), wire, sparse_as_dense, process_set, compression, **more)

    def __post_init__(self) -> None:
        check_op(self.op, "float32")
        if rank_of(self.wire) and self.op not in (Average, Sum):
            raise UsageError(f"Compression.powersgd with op={self.op} is not offered: use Average or Sum")
        if self.predivide != 1.0 and self.op is not Average:
            raise UsageError(
                f"gradient_predivide_factor={self.predivide} belongs to op=Average, not to op={self.op}: leave it out"
            )
        if not self.predivide > 0:
            raise UsageError(f"gradient_predivide_factor={self.predivide} must be greater than 0")

    def is_alone(self) -> bool:
        """Whether this rank's gradients stay as they are: it belongs to the process set by itself, or not at all. In an
        elastic job others may join a rank that is by itself, so its gradients are reduced all the same.

        Raises:
            UsageError: the set is not registered.
            NotInitializedError: before `init`.
        """
        if self.process_set.process_set_id is None:
            self.process_set.check_included()  # raises, as the set is not registered
        return not self.process_set.included() or self.process_set.stays_one()

    def call(self, name: str, site: str = "") -> Call:
        """Return the call that reduces gradients under `name`."""
        factors = 1.0 / self.predivide, self.predivide
        return Call("allreduce", name, self.op, -1, *factors, self.process_set, self.wire, site, is_gradient=True)


def check_passes(passes: object) -> int:
    """Return `passes`, the argument `backward_passes_per_step` of an optimizer.

    Raises:
        UsageError: it is not a whole number greater than 0.
    """
    if not (isinstance(passes, int) and passes > 0):
        raise UsageError(f"backward_passes_per_step={passes!r} must be a whole number greater than 0")
    return passes


def check_groups(num_groups: object, groups: object) -> None:
    """Refuse impossible values of these arguments of Horovod, which say which gradients travel together.

    Raises:
        UsageError: `num_groups` or `groups` is neither a number, 0 or more, nor lists of variables.
    """
    for name, value in (("num_groups", num_groups), ("groups", groups)):
        is_number = isinstance(value, int) and value >= 0
        is_lists = (
            name == "groups" and isinstance(value, (list, tuple)) and all(isinstance(x, (list, tuple)) for x in value)
        )
        if not (value is None or is_number or is_lists):
            raise UsageError(
                f"{name}={value!r} does not say which gradients travel together: give a number, 0 or more"
                + (", or a list of lists of variables" if name == "groups" else "")
            )
