"""States as JSON and tensors, and back.

`Builder` takes values apart. Its form of None, booleans, numbers, strings and lists is JSON's own. The form of anything
else is an object whose first key tells the kind:

    {"float": "nan"}                   a float that JSON does not have
    {"dict": [[key, value], ...]}      keys may be anything that is hashable; likewise odict, counter
    {"tuple": [...]}                   likewise set, frozenset, size (torch.Size)
    {"torch": ["model.0.weight", {"dtype": "bfloat16", "shape": [3]}]}     a tensor: its name, and a note; likewise jax,
                                       and numpy
    {"state": form}                    an object with state_dict and load_state_dict, saved as that dict
    {"keras": {...}}, {"variables": [...]}, {"variable": ...}   a model, an optimizer, a variable; of the first two
                                       perhaps with "losses", the residuals of compressed gradients
    {"node": ["optax.ScaleByAdamState", [...]]}    a named tuple, or a node of a pytree that only JAX knows

`restored` puts values together again. Values of the kinds from `state` on are not made again. They need `like`, the
object in their place. So nothing in a file can name code to be run.
"""

from __future__ import annotations

import base64
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from distrun.checkpoint import jax_arrays, keras_objects, numpy_arrays, torch_tensors
from distrun.checkpoint.numpy_arrays import Bytes, Capture
from distrun.errors import CheckpointError, UsageError
from distrun.runtime.collectives.residuals import warn_of_dropped

Form = Any
"""The JSON of a value."""
_RESIDUALS = "losses"


# Kinds ----------------------------------------------------------------------------------------------------------------


class _Text(NamedTuple):
    """A kind of value that JSON can write in another way."""

    matches: Callable[[Any], bool]
    write: Callable[[Any], Form]
    read: Callable[[Form], Any]


class _Object(NamedTuple):
    """A kind of object that is overwritten when it is restored."""

    matches: Callable[[Any], bool]
    name: str


def _is_stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _is_size(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Size)


def _size(numbers: list[int]) -> Any:
    import torch

    return torch.Size(numbers)


_ARRAYS: dict[str, ModuleType] = {"torch": torch_tensors, "jax": jax_arrays, "numpy": numpy_arrays}
_DICTS: dict[str, type[Any]] = {"dict": dict, "odict": OrderedDict, "counter": Counter}
_SEQUENCES: dict[str, type[Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_TEXTS = {
    "float": _Text(lambda value: type(value) is float, str, float),
    "complex": _Text(lambda value: type(value) is complex, str, complex),
    "bytes": _Text(
        lambda value: type(value) is bytes, lambda value: base64.b64encode(value).decode("ascii"), base64.b64decode
    ),
    "size": _Text(_is_size, list, _size),
}
_OBJECTS = {
    "keras": _Object(keras_objects.is_model, "a model of Keras"),
    "variables": _Object(keras_objects.is_optimizer, "an optimizer of Keras"),
    "variable": _Object(keras_objects.is_variable, "a variable"),
    "state": _Object(_is_stateful, "an object with load_state_dict"),
}


def _parts(value: Any) -> list[Any] | None:
    """Return the parts of a named tuple, or of a node of a pytree, or None if it is neither."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(value)
    return jax_arrays.children(value)


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# Taking apart ---------------------------------------------------------------------------------------------------------


class Builder:
    """Takes values apart. Collects the tensors in `tensors`, by names that are unique and follow their places."""

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
        if type(value) is float and math.isfinite(value):  # JSON's numbers are exact, as Python writes and reads them
            return value
        if type(value) is list:
            return self._forms(value, path)
        for tag, arrays in _ARRAYS.items():
            if arrays.matches(value):
                return {tag: self._tensor(arrays.captured(value, path), path)}
        for tag, kind in _DICTS.items():
            if type(value) is kind:
                return self._dict(tag, value, path)
        for tag, kind in _SEQUENCES.items():
            if type(value) is kind:
                return {tag: self._forms(value, path)}
        for tag, text in _TEXTS.items():
            if text.matches(value):
                return {tag: text.write(value)}
        for tag, known in _OBJECTS.items():
            if known.matches(value):
                return self._object(tag, value, path)
        parts = _parts(value)
        if parts is not None:
            return {"node": [_type_name(value), self._forms(parts, path)]}
        raise UsageError(
            f"{path} is a {_type_name(value)}, which a checkpoint cannot hold: save numbers, texts, tensors, lists, "
            "tuples and dicts of them, or objects with state_dict and load_state_dict"
        )

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

    def _dict(self, tag: str, value: Mapping[Any, Any], path: str) -> Form:
        pairs = [[self.form(key, f"a key of {path}"), self.form(value[key], f"{path}.{key}")] for key in value]
        # Modules of torch keep their versions there.
        metadata = getattr(value, "_metadata", None) if tag == "odict" else None
        return {tag: pairs} if metadata is None else {tag: pairs, "metadata": self.form(metadata, path)}

    def _object(self, tag: str, value: Any, path: str) -> Form:
        """Return the form of an object that is overwritten when it is restored."""
        if tag == "state":
            return {tag: self.form(value.state_dict(), path)}
        if tag == "variable":
            return {tag: self.form(keras_objects.array_of(value), path)}
        if tag == "keras":
            found = keras_objects.model_variables(value)
            form: Form = {tag: {part: self._variables(found[part], f"{path}.{part}") for part in found}}
        else:
            form = {tag: self._variables(keras_objects.optimizer_variables(value), path)}
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
    `like` may be None, and tensors go to the device of the tensor in their place.

    Args:
        form: as `Builder` made it.
        data: the bytes of the tensors, by name.
        like: the value whose place this one takes.
        path: the value's place, for messages.

    Raises:
        UsageError: `like` is not the same kind of object as was saved, or misses a part of it.
        CheckpointError: the form is of a kind that this distrun does not know.
    """
    return _Restorer(data).value(form, like, path)


class _Restorer:
    """Puts values together. See `restored`."""

    def __init__(self, data: Mapping[str, Bytes]) -> None:
        self._data = data

    def value(self, form: Form, like: Any, path: str) -> Any:
        if type(form) is list:
            return self._values(form, like if isinstance(like, (list, tuple)) else (), path)
        if type(form) is not dict:
            return form
        tag, content = next(iter(form.items()))
        if tag in _ARRAYS:
            name, note = content
            return _ARRAYS[tag].restored(note, self._data[name], like)
        if tag in _DICTS:
            return self._dict(form, tag, like, path)
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](self._values(content, like if isinstance(like, tuple) else (), path))
        if tag in _TEXTS:
            return _TEXTS[tag].read(content)
        if tag in _OBJECTS:
            if not _OBJECTS[tag].matches(like):
                raise _other(path, _OBJECTS[tag].name, like)
            self._overwrite(tag, content, like, path)
            if _RESIDUALS in form:
                self._restore_residuals(form[_RESIDUALS], like, f"{path}.{_RESIDUALS}")
            return like
        if tag == "node":
            return self._node(content, like, path)
        raise CheckpointError(f"{path} has the unknown form {tag!r}: it was saved by a newer distrun than this")

    def _values(self, forms: Iterable[Form], likes: Sequence[Any], path: str) -> list[Any]:
        return [
            self.value(form, likes[place] if place < len(likes) else None, f"{path}.{place}")
            for place, form in enumerate(forms)
        ]

    def _dict(self, form: Form, tag: str, like: Any, path: str) -> Any:
        keys = [self.value(key, None, path) for key, _ in form[tag]]
        likes = like if isinstance(like, Mapping) else {}
        made = _DICTS[tag]()
        for key, (_, value) in zip(keys, form[tag], strict=True):
            made[key] = self.value(value, likes.get(key), f"{path}.{key}")
        if "metadata" in form:
            made._metadata = self.value(form["metadata"], None, path)
        return made

    def _overwrite(self, tag: str, content: Form, like: Any, path: str) -> None:
        if tag == "state":
            like.load_state_dict(self.value(content, None, path))
        elif tag == "variable":
            self._assign([like], [content], path)
        elif tag == "variables":
            self._assign(keras_objects.optimizer_variables(like), content, path)
        else:
            # A model that is not compiled has no optimizer to restore, nor has one that was saved so.
            for part, variables in keras_objects.model_variables(like).items():
                if variables and content[part]:
                    self._assign(variables, content[part], f"{path}.{part}")

    def _assign(self, variables: Sequence[Any], forms: list[Form], path: str) -> None:
        keras_objects.assign(variables, self._values(forms, (), path), path)

    def _restore_residuals(self, form: Form, like: Any, path: str) -> None:
        feedback = keras_objects.feedback_of(like)
        if feedback is not None:
            self.value(form, feedback, path)
        elif keras_objects.is_distributed(like) and self.value(form["state"], None, path):
            warn_of_dropped("the gradients of this optimizer")

    def _node(self, content: Form, like: Any, path: str) -> Any:
        name, forms = content
        parts = _parts(like)
        if parts is None or _type_name(like) != name or len(parts) != len(forms):
            raise _other(path, f"a {name} of {len(forms)} parts", like)
        made = self._values(forms, parts, path)
        return type(like)(*made) if hasattr(like, "_fields") else jax_arrays.with_children(like, made)


def _other(path: str, saved: str, given: Any) -> UsageError:
    present = "nothing is given" if given is None else f"a {_type_name(given)} is given"
    return UsageError(f"the checkpoint has for {path} {saved}, and {present} to restore: give the same as to save")
