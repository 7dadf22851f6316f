"""One binding onto one imported module, and the proof that it is still there."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import wrapt

from miles_periodic.compat.binding import Adapter, Binding

#: wrapt keeps attributes with the prefix `_self_` on the proxy instead of the wrapped function.
_MARK = "_self_miles_periodic_binding"


class BindingError(Exception):
    """A target in this process is not what its binding was made for.

    Not a PeriodicError: every process of a run imports this module, and hooks/ brings pydantic.
    """


@dataclass(frozen=True, slots=True)
class Applied:
    """A binding in place: `holder.attribute` is, or contains, our wrapper."""

    binding: Binding
    holder: Any
    attribute: str

    def in_place(self) -> bool:
        """Whether the target still leads to our wrapper, under whatever others put around it."""
        current = vars(self.holder).get(self.attribute)
        while current is not None:
            if getattr(current, _MARK, None) == self.binding.name:
                return True
            current = getattr(current, "__wrapped__", None)
        return False


def apply_binding(binding: Binding, module: ModuleType) -> Applied:
    """Put a binding's adapter around its target in `module`.

    Raises BindingError where the target is missing or already carries this binding.
    """
    holder, attribute, original = _resolve(binding, module)
    adapter = _load(binding.adapter)
    applied = Applied(binding, holder, attribute)
    if applied.in_place():
        raise _error(binding, "the target without this binding", "it was already applied")
    travels = _is_remote_class(holder) or _may_become_remote(binding, holder, original)
    wrapper = _wrapper(binding.name, original, adapter, travels=travels)
    setattr(holder, attribute, wrapper)
    return applied


def _resolve(binding: Binding, module: ModuleType) -> tuple[Any, str, Any]:
    *path, attribute = binding.qualname.split(".")
    holder: Any = module
    for name in path:
        holder = getattr(holder, name, None)
        if holder is None:
            raise _error(binding, f"{name} in {module.__name__}", "no such name")
        holder = _defined_class(holder)
    original = vars(holder).get(attribute)
    if original is None:
        original = getattr(holder, attribute, None)
    if not callable(getattr(original, "__func__", original)):
        raise _error(binding, f"a function {binding.qualname}", repr(type(original).__name__))
    return holder, attribute, original


def _defined_class(holder: Any) -> Any:
    """The class that Ray ships to its workers, where `holder` is a `@ray.remote` class."""
    metadata = getattr(holder, "__ray_metadata__", None)
    return holder if metadata is None else metadata.modified_class


def _is_remote_class(holder: Any) -> bool:
    return getattr(holder, "__ray_actor_class__", None) is not None


def _may_become_remote(binding: Binding, holder: Any, original: Any) -> bool:
    """Whether Miles may turn the class into an actor later, as it does with its engines.

    Ray then copies each method, and of one that a proxy wraps it copies what is inside.
    """
    is_plain = type(original) is FunctionType and not inspect.iscoroutinefunction(original)
    return binding.upstream == "miles" and isinstance(holder, type) and is_plain


def _load(path: str) -> Adapter:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _wrapper(name: str, original: Any, adapter: Adapter, *, travels: bool) -> Callable[..., Any]:
    """The wrapper to install; one that `travels` is a plain function that Ray can pickle.

    Ray pickles a `@ray.remote` class by value in the driver, wrappers included, and wrapt's
    proxies refuse to be pickled.
    """
    if travels:

        @functools.wraps(original)
        def bound(self, *args, **kwargs):
            return consult(name, adapter, functools.partial(original, self), self, args, kwargs)

        setattr(bound, _MARK, name)
        return bound
    wrapper = _ByName(original, functools.partial(consult, name, adapter))
    setattr(wrapper, _MARK, name)
    return wrapper


class _ByName(wrapt.FunctionWrapper):
    """A wrapper that pickles as the name of its target.

    Ray pickles the functions that a `@ray.remote` class uses along with it; the process that
    unpickles the name imports the module, which puts its own wrapper in.
    """

    def __reduce_ex__(self, protocol):
        return _named, (self.__module__, self.__qualname__)


def _named(module: str, qualname: str) -> Any:
    return functools.reduce(getattr, qualname.split("."), importlib.import_module(module))


def consult(
    name: str,
    adapter: Adapter,
    wrapped: Callable[..., Any],
    instance: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call an adapter, and count the call in this process's roll call."""
    from miles_periodic.compat.boot import member

    current = member()
    if current is not None:
        current.count(name)
    return adapter(wrapped, instance, args, kwargs)


def _error(binding: Binding, expected: str, found: str) -> BindingError:
    return BindingError(
        f"expected {expected}, found {found}; run `miles plan` in this environment, which names "
        "the tree and what to do"
    )
