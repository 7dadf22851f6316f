"""SGLang's kernels have a stand-in that resolves everything and runs nothing."""

import importlib
import sys

import pytest
from miles_periodic.compat.cpu import sgl_kernel


@pytest.fixture
def installed():
    """The finder in place, and neither it nor its modules left behind."""
    finders, modules = list(sys.meta_path), set(sys.modules)
    sgl_kernel.install()
    yield
    sys.meta_path[:] = finders
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] == sgl_kernel.PACKAGE:
            del sys.modules[name]


def test_importing_the_stand_in_installs_nothing():
    assert not any(isinstance(f, sgl_kernel.KernelStandInFinder) for f in sys.meta_path)


@pytest.mark.usefixtures("installed")
class TestOnceInstalled:
    def test_any_kernel_can_be_imported(self):
        assert callable(importlib.import_module("sgl_kernel").silu_and_mul)

    def test_any_submodule_can_be_imported(self):
        assert callable(importlib.import_module("sgl_kernel.kvcacheio").transfer_kv_all_layer)

    def test_a_kernel_that_is_called_says_which_one_it_is(self):
        kernel = importlib.import_module("sgl_kernel.quantization").dequantize
        with pytest.raises(NotImplementedError, match=r"sgl_kernel\.quantization\.dequantize"):
            kernel()

    def test_scalar_types_are_usable_as_keys_of_a_table(self):
        types = importlib.import_module("sgl_kernel.scalar_type").scalar_types
        assert {types.uint4b8: 1, types.float4_e2m1f: 2}[types.uint4b8] == 1

    def test_protocol_names_are_not_invented(self):
        module = importlib.import_module("sgl_kernel.flash_attn")
        assert not hasattr(module, "__wrapped__")

    def test_a_second_install_changes_nothing(self):
        before = list(sys.meta_path)
        sgl_kernel.install()
        assert sys.meta_path == before

    def test_other_packages_are_left_alone(self):
        assert sgl_kernel.KernelStandInFinder().find_spec("sgl_kernels") is None
