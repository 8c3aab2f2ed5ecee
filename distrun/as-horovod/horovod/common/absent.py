"""Names of Horovod that are not supported yet: accessing one raises an error with the reason."""

_ABSENT = {
    "horovod.torch": {"sparse_allreduce_async"},
}


def attribute_error(module: str, name: str) -> AttributeError:
    """Return the error for a name that a module does not have."""
    if name in _ABSENT.get(module, ()):
        return AttributeError(f"{module}.{name} is not there yet: distrun's docs/parity.md says what is")
    return AttributeError(f"module {module!r} has no attribute {name!r}")
