"""Whose data is where: masters in host memory, a placeholder in the parameter, or given back.

A placeholder is one NaN spread over the parameter's shape with stride 0: `.grad` can be assigned,
a forgotten reader reads NaN, and writing in place raises, because its elements share memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from miles_periodic.plugins.chunked_optimizer_offload.host_memory import HostMemory
from miles_periodic.plugins.chunked_optimizer_offload.layout import Extent, lay_out
from miles_periodic.plugins.chunked_optimizer_offload.workspace import MASTER


class Residency:
    """Parameters by number, in the order in which they were added.

    taken: whether masters are in host memory now. resident: numbers of those that have their real
    data on the device for a while.
    """

    def __init__(self) -> None:
        self.params: list[torch.Tensor] = []
        self.extents: list[Extent] = []
        self.number: dict[torch.Tensor, int] = {}
        self.resident: set[int] = set()
        self.taken = False
        self.device = torch.device("cpu")
        self.host = HostMemory(pinned=False)
        self._placeholders: dict[int, torch.Tensor] = {}
        self._versions: dict[int, int] = {}
        self._nan: torch.Tensor | None = None

    def check(self, params: Sequence[torch.Tensor]) -> None:
        """Raise TypeError or ValueError on what cannot be taken over. Changes nothing."""
        device = self.device if self.params else params[0].device if params else self.device
        for param in params:
            if type(param) not in (torch.Tensor, torch.nn.Parameter):
                raise TypeError(
                    f"{type(param).__name__} of shape {tuple(param.shape)} cannot be taken over: "
                    "give plain tensors or Parameters."
                )
            if param.dtype != torch.float32 or param.layout != torch.strided:
                raise TypeError(
                    f"a parameter is {param.dtype}, {param.layout}: masters are dense "
                    "torch.float32. Give the optimizer fp32 masters of it."
                )
            if device.type not in ("cpu", "cuda") or param.device != device:
                raise ValueError(
                    f"a parameter is on {param.device}, others on {device}: make one optimizer "
                    "for each device, on CUDA or the CPU."
                )
            if not param.is_contiguous():
                raise ValueError(
                    f"a parameter of shape {tuple(param.shape)} is not contiguous: "
                    "make it contiguous() first."
                )

    def add(self, params: Sequence[torch.Tensor]) -> None:
        """Give checked parameters numbers and places. Their data stays where it is."""
        if not self.params and params:
            self.device = params[0].device
            self.host = HostMemory(pinned=self.device.type == "cuda")
        first_block = len(self.host.block_lengths)
        layout = lay_out([param.numel() for param in params])
        self.host.add_blocks(layout.block_lengths)
        for param, extent in zip(params, layout.extents, strict=True):
            self.number[param] = len(self.params)
            self.params.append(param)
            self.extents.append(Extent(extent.block + first_block, extent.start, extent.length))

    def forget_from(self, first: int) -> None:
        """Drop the parameters from number `first` on; their host memory stays unused."""
        for param in self.params[first:]:
            del self.number[param]
        del self.params[first:], self.extents[first:]

    def take(self, numbers: Iterable[int]) -> None:
        """Copy these parameters' data into host memory and leave placeholders.

        Raises before any of them has changed.
        """
        numbers = list(numbers)
        self.check([self.params[number] for number in numbers])
        self.host.add_kind(MASTER, torch.float32)
        for number in numbers:
            self.master(number).copy_(self.params[number].data)
        for number in numbers:
            self._put_placeholder(number)
        self.taken = True

    def add_and_take(self, params: Sequence[torch.Tensor]) -> None:
        """Both, or neither: where taking fails, the parameters are none of ours."""
        first = len(self.params)
        self.add(params)
        try:
            self.take(range(first, first + len(params)))
        except BaseException:
            self.forget_from(first)
            raise

    def master(self, number: int) -> torch.Tensor:
        """The host tensor, in the parameter's shape."""
        return self.host.view(MASTER, self.extents[number], self.params[number].shape)

    def give(self, numbers: Iterable[int]) -> list[int]:
        """Put real data on the device; the numbers that had none. All of them, or none."""
        given: list[int] = []
        try:
            for number in numbers:
                if number not in self.resident:
                    given.append(number)
                    self.params[number].data = self.master(number).to(self.device, copy=True)
                    self.resident.add(number)
        except BaseException:
            for number in given:
                self._put_placeholder(number)
            raise
        return given

    def take_back(self, numbers: Iterable[int]) -> None:
        """The reverse of `give`. Goes through all of them, then raises the first error."""
        errors = []
        for number in numbers:
            try:
                self._check_shape(number)
                self.master(number).copy_(self.params[number].data)
            except BaseException as error:
                errors.append(error)
            finally:
                self._put_placeholder(number)
        if errors:
            raise errors[0]

    @contextmanager
    def given(self, numbers: Iterable[int]) -> Iterator[None]:
        """Real data while the block runs; back in host memory however it ends."""
        given = self.give(numbers)
        try:
            yield
        finally:
            self.take_back(given)

    def release(self) -> None:
        """Real data for good. Host memory is kept for the next `take`."""
        self.give(range(len(self.params)))
        self.resident.clear()
        self._placeholders.clear()
        self._nan = None
        self.taken = False

    def check_all_untouched(self) -> None:
        for number in range(len(self.params)):
            self.check_untouched(number)

    def check_untouched(self, number: int) -> None:
        """Raise RuntimeError where a parameter shows something else than its placeholder."""
        param, placeholder = self.params[number], self._placeholders[number]
        same = param.data_ptr() == placeholder.data_ptr() or not param.numel()
        # A single element can be written: it shares its memory with no other. Its value is not
        # looked at on a GPU, because that would wait for the backward pass.
        if param.numel() == 1:
            same &= param._version == self._versions[number]
            same &= self.device.type != "cpu" or bool(placeholder.isnan())
        if not same:
            raise RuntimeError(
                f"parameter {number} of shape {tuple(param.shape)} was written while its data is "
                "in host memory, so the write would be lost: write inside resident(), or to "
                "master(param)."
            )

    def check_none_resident(self, what: str) -> None:
        """Raise RuntimeError where a parameter has its real data on the device for a while."""
        if self.resident:
            raise RuntimeError(
                f"{what} inside resident(): what was written there goes back to host memory only "
                "at the end of its block. Leave the block first."
            )

    def number_of(self, param: torch.Tensor) -> int:
        """Raises ValueError on a tensor that was never added."""
        try:
            return self.number[param]
        except KeyError:
            raise ValueError(
                f"a tensor of shape {tuple(param.shape)} is no parameter of this optimizer: "
                "add it with add_param_group."
            ) from None

    def numbers_of(self, params: Iterable[torch.Tensor] | None) -> list[int]:
        """Numbers of these parameters; of all without them."""
        if params is None:
            return list(range(len(self.params)))
        return [self.number_of(param) for param in params]

    def num_placeholder_bytes(self) -> int:
        nan = 0 if self._nan is None else self._nan.nbytes
        ones = [p for n, p in self._placeholders.items() if self.params[n].numel() == 1]
        return nan + sum(placeholder.nbytes for placeholder in ones)

    def _put_placeholder(self, number: int) -> None:
        param = self.params[number]
        if number not in self._placeholders:
            if self._nan is None:
                self._nan = torch.full((), torch.nan, dtype=torch.float32, device=self.device)
            nan = self._nan.clone() if param.numel() == 1 else self._nan
            self._placeholders[number] = nan.expand(param.shape)
        elif param.numel() == 1:
            self._placeholders[number].fill_(torch.nan)
        param.data = self._placeholders[number]
        self._versions[number] = param._version
        self.resident.discard(number)

    def _check_shape(self, number: int) -> None:
        param, extent = self.params[number], self.extents[number]
        if param.shape != self._placeholders[number].shape:
            raise RuntimeError(
                f"parameter {number} came back from resident() with {param.numel()} elements of "
                f"shape {tuple(param.shape)}, not {extent.length}: keep its shape."
            )
