"""States as JSON and tensors, and back.

`Builder` takes values apart. Its form of None, booleans, numbers, strings and lists is JSON's own; of all others an
object with one key, which tells the kind:

    {"float": "nan"}                   a float that JSON has not
    {"dict": [[key, value], ...]}      keys may be anything that is hashable; likewise odict, counter
    {"tuple": [...]}                   likewise set, frozenset, size (torch.Size)
    {"torch": ["model.0.weight", {"dtype": "bfloat16", "shape": [3]}]}     a tensor: its name, and a note; likewise jax,
                                       and numpy
    {"state": form}                    an object with state_dict and load_state_dict, saved as that dict
    {"keras": {...}}, {"variables": [...]}, {"variable": ...}   a model, an optimizer, a variable; of the first two
                                       perhaps with "losses", what compression has taken from the gradients
    {"node": ["optax.ScaleByAdamState", [...]]}    a named tuple, or a node of a pytree that only JAX knows

`restored` puts values together again. The kinds from `state` on are not made again, but need the object that takes
their place, `like`: so nothing in a file can name code to be run.
"""

from __future__ import annotations

import base64
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from distrun.checkpoint import jax_arrays, keras_objects, numpy_arrays, torch_tensors
from distrun.checkpoint.numpy_arrays import Bytes, Capture
from distrun.errors import CheckpointError, UsageError
from distrun.runtime.collectives.residuals import warn_of_dropped

_RESIDUALS = "losses"
Form = Any
"""The JSON of a value."""
_ARRAYS: dict[str, ModuleType] = {"torch": torch_tensors, "jax": jax_arrays, "numpy": numpy_arrays}
_SEQUENCES: dict[str, type[Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_DICTS: dict[str, type[Any]] = {"dict": dict, "odict": OrderedDict, "counter": Counter}


# Taking apart ---------------------------------------------------------------------------------------------------------


class Builder:
    """Takes values apart. The tensors are collected in `tensors`, by names that are unique and follow their places."""

    def __init__(self) -> None:
        self.tensors: dict[str, Capture] = {}
        self._names: dict[Hashable, str] = {}

    def form(self, value: Any, path: str) -> Form:
        """Return the form of a value; `path` says where it is, `optimizer.state.0.step`.

        Raises:
            UsageError: it is something that a checkpoint cannot hold.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is list:
            return self._forms(value, path)
        if type(value) is float:  # JSON's numbers are exact, as Python writes and reads them
            return value if math.isfinite(value) else {"float": str(value)}
        for tag, arrays in _ARRAYS.items():
            if arrays.matches(value):
                return {tag: self._tensor(arrays.captured(value, path), path)}
        return self._plain(value, path) or self._object(value, path)

    def _forms(self, values: Iterable[Any], path: str) -> list[Form]:
        return [self.form(each, f"{path}.{place}") for place, each in enumerate(values)]

    def _tensor(self, capture: Capture, path: str) -> list[Any]:
        name = None if capture.identity is None else self._names.get(capture.identity)
        if name is None:
            name, again = path, 1
            while name in self.tensors:  # the keys 0 and "0" of a dict look alike
                again += 1
                name = f"{path}#{again}"
            self.tensors[name] = capture
            if capture.identity is not None:
                self._names[capture.identity] = name
        return [name, capture.note]

    def _plain(self, value: Any, path: str) -> Form | None:
        """Return the form of one of Python's own types, which is made again when it is restored."""
        for tag, kind in _DICTS.items():
            if type(value) is kind:
                pairs = [[self.form(key, f"a key of {path}"), self.form(value[key], f"{path}.{key}")] for key in value]
                # Modules of torch keep their versions there.
                metadata = getattr(value, "_metadata", None) if kind is OrderedDict else None
                return {tag: pairs} if metadata is None else {tag: pairs, "metadata": self.form(metadata, path)}
        for tag, kind in _SEQUENCES.items():
            if type(value) is kind:
                return {tag: self._forms(value, path)}
        if type(value) is complex:
            return {"complex": str(value)}
        if type(value) is bytes:
            return {"bytes": base64.b64encode(value).decode("ascii")}
        if _is_size(value):
            return {"size": list(value)}
        return None

    def _object(self, value: Any, path: str) -> Form:
        """Return the form of an object of a framework."""
        if keras_objects.is_model(value):
            found = keras_objects.model_variables(value)
            form: Form = {"keras": {part: self._variables(found[part], f"{path}.{part}") for part in found}}
            return self._with_residuals(form, value, path)
        if keras_objects.is_optimizer(value):
            form = {"variables": self._variables(keras_objects.optimizer_variables(value), path)}
            return self._with_residuals(form, value, path)
        if keras_objects.is_variable(value):
            return {"variable": self.form(keras_objects.array_of(value), path)}
        if _is_stateful(value):
            return {"state": self.form(value.state_dict(), path)}
        parts = _parts(value)
        if parts is not None:
            return {"node": [_type_name(value), self._forms(parts, path)]}
        raise UsageError(
            f"{path} is a {_type_name(value)}, which a checkpoint cannot hold: save numbers, texts, tensors, lists, "
            "tuples and dicts of them, or objects with state_dict and load_state_dict"
        )

    def _with_residuals(self, form: Form, value: Any, path: str) -> Form:
        feedback = keras_objects.feedback_of(value)
        return form if feedback is None else {**form, _RESIDUALS: self.form(feedback, f"{path}.{_RESIDUALS}")}

    def _variables(self, variables: Sequence[Any], path: str) -> list[Form]:
        return [
            self.form(keras_objects.array_of(each), f"{path}.{place}.{getattr(each, 'path', each.name)}")
            for place, each in enumerate(variables)
        ]


# Putting together -----------------------------------------------------------------------------------------------------


def restored(form: Form, data: Mapping[str, Bytes], like: Any, path: str) -> Any:
    """Return the value of a form.

    Objects of frameworks are overwritten and returned: `like`, or what has the same place in it. For everything else
    `like` may be None; tensors go to the device of the tensor in their place.

    Args:
        form: as `Builder` made it.
        data: the bytes of the tensors, by name.
        like: the value that takes this one's place.
        path: the value's place, for messages.

    Raises:
        UsageError: `like` is not the same kind of object as was saved, or misses a part of it.
        CheckpointError: the form is of a kind that this distrun does not know.
    """
    if type(form) is list:
        return _all_restored(form, data, like if isinstance(like, (list, tuple)) else (), path)
    if type(form) is not dict:
        return form
    tag, content = next(iter(form.items()))
    if tag in _ARRAYS:
        name, note = content
        return _ARRAYS[tag].restored(note, data[name], like)
    if tag in _DICTS:
        return _dict_restored(form, tag, data, like, path)
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](_all_restored(content, data, like if isinstance(like, tuple) else (), path))
    known: dict[str, Callable[..., Any]] = {**_MADE_ANEW, **_OVERWRITTEN}
    if tag not in known:
        raise CheckpointError(f"{path} has the unknown form {tag!r}: it was saved by a newer distrun than this")
    if tag in _MADE_ANEW:
        return _MADE_ANEW[tag](content)
    value = _OVERWRITTEN[tag](content, data, like, path)
    if _RESIDUALS in form:
        _residuals_restored(form[_RESIDUALS], data, like, f"{path}.{_RESIDUALS}")
    return value


def _residuals_restored(form: Form, data: Mapping[str, Bytes], like: Any, path: str) -> None:
    feedback = keras_objects.feedback_of(like)
    if feedback is not None:
        restored(form, data, feedback, path)
    elif keras_objects.is_distributed(like) and restored(form["state"], data, None, path):
        warn_of_dropped("the gradients of this optimizer")


def _all_restored(forms: Iterable[Form], data: Mapping[str, Bytes], likes: Sequence[Any], path: str) -> list[Any]:
    return [
        restored(form, data, likes[place] if place < len(likes) else None, f"{path}.{place}")
        for place, form in enumerate(forms)
    ]


def _dict_restored(form: Form, tag: str, data: Mapping[str, Bytes], like: Any, path: str) -> Any:
    keys = [restored(key, data, None, path) for key, _ in form[tag]]
    likes = like if isinstance(like, Mapping) else {}
    made = _DICTS[tag]()
    for key, (_, value) in zip(keys, form[tag], strict=True):
        made[key] = restored(value, data, likes.get(key), f"{path}.{key}")
    if "metadata" in form:
        made._metadata = restored(form["metadata"], data, None, path)
    return made


def _state_restored(form: Form, data: Mapping[str, Bytes], like: Any, path: str) -> Any:
    if not _is_stateful(like):
        raise _other(path, "an object with load_state_dict", like)
    like.load_state_dict(restored(form, data, None, path))
    return like


def _keras_restored(form: Form, data: Mapping[str, Bytes], like: Any, path: str) -> Any:
    if not keras_objects.is_model(like):
        raise _other(path, "a model of Keras", like)
    # A model that is not compiled has no optimizer to restore, nor has one that was saved so.
    for part, variables in keras_objects.model_variables(like).items():
        if variables and form[part]:
            _assign(variables, form[part], data, f"{path}.{part}")
    return like


def _variables_restored(forms: list[Form], data: Mapping[str, Bytes], like: Any, path: str) -> Any:
    if not keras_objects.is_optimizer(like):
        raise _other(path, "an optimizer of Keras", like)
    _assign(keras_objects.optimizer_variables(like), forms, data, path)
    return like


def _variable_restored(form: Form, data: Mapping[str, Bytes], like: Any, path: str) -> Any:
    if not keras_objects.is_variable(like):
        raise _other(path, "a variable", like)
    _assign([like], [form], data, path)
    return like


def _assign(variables: Sequence[Any], forms: list[Form], data: Mapping[str, Bytes], path: str) -> None:
    keras_objects.assign(variables, _all_restored(forms, data, (), path), path)


def _node_restored(content: list[Any], data: Mapping[str, Bytes], like: Any, path: str) -> Any:
    name, forms = content
    parts = _parts(like)
    if parts is None or _type_name(like) != name or len(parts) != len(forms):
        raise _other(path, f"a {name} of {len(forms)} parts", like)
    made = _all_restored(forms, data, parts, path)
    return type(like)(*made) if hasattr(like, "_fields") else jax_arrays.with_children(like, made)


def _size_restored(numbers: list[int]) -> Any:
    import torch

    return torch.Size(numbers)


_MADE_ANEW: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "complex": complex,
    "bytes": base64.b64decode,
    "size": _size_restored,
}
_OVERWRITTEN: dict[str, Callable[..., Any]] = {
    "state": _state_restored,
    "keras": _keras_restored,
    "variables": _variables_restored,
    "variable": _variable_restored,
    "node": _node_restored,
}


# Both -----------------------------------------------------------------------------------------------------------------


def _is_stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _is_size(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Size)


def _parts(value: Any) -> list[Any] | None:
    """Return the parts of a named tuple, or of a node of a pytree; None if it is neither."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(value)
    return jax_arrays.children(value)


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _other(path: str, saved: str, given: Any) -> UsageError:
    told = "nothing is given" if given is None else f"a {_type_name(given)} is given"
    return UsageError(f"the checkpoint has for {path} {saved}, and {told} to restore: give the same as to save")
