"""A package in place of SGLang's CUDA kernels, served from memory.

Symptom: `import sglang` fails with "libcuda.so.1: cannot open shared object file", or with no
module named `sgl_kernel`. Trigger: sglang/srt imports names from `sgl_kernel` at module level in
dozens of files, also on the CPU path that never calls them. Safe: every name resolves, and calling
one raises with its name, so a kernel that would really be needed is never skipped in silence.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE = "sgl_kernel"


def install() -> None:
    """Serve `sgl_kernel` and everything below it; a second call changes nothing."""
    if not any(isinstance(finder, KernelStandInFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, KernelStandInFinder())


class KernelStandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads `sgl_kernel` and its submodules; leaves every other name alone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != PACKAGE and not fullname.startswith(f"{PACKAGE}."):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _KernelModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = "0.0.0+cpu"
        if module.__name__ == f"{PACKAGE}.scalar_type":
            module.scalar_types = _ScalarTypes()
            module.ScalarType = type("ScalarType", (), {})


class _KernelModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _kernel(f"{self.__name__}.{name}")


class _ScalarTypes:
    """Quantisation tables are keyed by scalar types at import; their names serve as well."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def _kernel(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"{name} is a CUDA kernel and this is a CPU run: choose the SGLang option that "
            "avoids it, or write its CPU form in compat/cpu/."
        )

    refuse.__name__ = refuse.__qualname__ = name
    return refuse
