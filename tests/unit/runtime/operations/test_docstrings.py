"""The docstrings of collectives: what the source leaves out is added, and what it says stays."""

import pytest

import distrun
from distrun.runtime.collectives import copies, reductions
from distrun.runtime.operations import docstrings

NAMES = [*copies.__all__, *reductions.__all__]
ARGS = ["tensor", "name", "op", "process_set"]


@pytest.mark.parametrize("name", NAMES)
def test_help_describes_every_parameter_the_result_and_the_errors(name):
    function = getattr(distrun, name)
    parameters = [each for each in function.__annotations__ if each != "return"]
    text = function.__doc__
    args, returns, raises = (text.index(f"\n{title}:\n") for title in ("Args", "Returns", "Raises"))
    places = [text.index(f"\n    {each}: ") for each in parameters]
    assert [args, *places, returns, raises] == sorted([args, *places, returns, raises])
    assert text[returns:raises].strip() != "Returns:"
    assert "UsageError: " in text[raises:]
    assert all(len(line) <= docstrings.WIDTH for line in text.splitlines())


def test_what_the_source_says_stays():
    source = """Reduce.

    Here.

    Args:
        op: mine,
            in two lines.

    Returns:
        Something.

    Raises:
        UsageError: always.
        OSError: never.
    """
    text = docstrings.complete("allreduce", ARGS, source)
    assert text.startswith("Reduce.\n\nHere.\n\nAll ranks get the same bits.")
    assert f"\n    op: mine, in two lines.\n    process_set: {docstrings.PARAMETERS['process_set']}\n" in text
    assert "\nReturns:\n    Something.\n" in text
    assert "\n    UsageError: always.\n" in text
    assert text.endswith("\n    OSError: never.")


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("allreduce", "A new tensor of the same shape and dtype."),
        ("allreduce_", "`tensor`."),
        ("allreduce_async", "A handle. Its `wait` returns and raises what `allreduce` does; do not change"),
        ("allreduce_async_", "A handle. Its `wait` returns and raises what `allreduce_` does; neither read nor change"),
    ],
)
def test_the_result_is_the_forms(name, result):
    assert f"\nReturns:\n    {result}" in docstrings.complete(name, ARGS, "Reduce.")


def test_errors_of_other_ranks_are_those_of_forms_that_wait():
    assert "MismatchError" in docstrings.complete("broadcast", ["tensor"], "Copy.")
    assert "MismatchError" not in docstrings.complete("broadcast_async", ["tensor"], "Copy.")


def test_without_docstrings_there_is_nothing_to_complete():
    def allreduce(tensor: object) -> None: ...

    docstrings.complete_all({"__all__": ["allreduce"], "allreduce": allreduce})
    assert allreduce.__doc__ is None
