"""Outputs, streams and launches.

`allocate` is the only source of output and workspace memory. A `Launch` is prepared once for a plan and its scalars;
after that a call writes pointers into a packed argument and hands it to the driver.
"""

import ctypes
import functools
import math
import struct
import threading
from contextlib import contextmanager

import numpy
import torch
from cuda.bindings import driver

from optimized import jit, tma
from optimized.plan import PORTABLE_CLUSTER, Chip, Plan

_SCALARS = {numpy.int64: "q", numpy.int32: "i", numpy.float32: "f"}
_CLUSTER_SIZES = (2, 4, 8, 16)

_allocate = None  # what replaces PyTorch's allocator, while `allocator` is in force


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialised contiguous tensor."""
    if _allocate is None:  # empty_strided takes half the host time of empty
        return torch.empty_strided(shape, _strides(shape), dtype=dtype, device=device)
    return _allocate(shape, dtype, device)


@contextmanager
def allocator(function):
    """Within it, `function(shape, dtype, device)` gives every output and workspace: a contiguous tensor whose data
    begin at a multiple of 16 bytes."""
    global _allocate
    before, _allocate = _allocate, function
    try:
        yield
    finally:
        _allocate = before


class Launch:
    """A plan whose kernel is loaded and whose scalars are packed behind `pointers` pointers.

    The kernel takes one struct: the tensor maps, if any, then the pointers, then `scalars` in order. Scalars are
    numpy.int64, int32 or float32: a Python number has no size that the device could agree with, and is a TypeError.
    A call gives the pointers, from among which the `maps` take theirs.
    """

    def __init__(self, plan: Plan, device: torch.device, pointers: int, scalars: tuple,
                 maps: tma.Maps | None = None):
        layout = f"{pointers}Q" + "".join(_code(scalar) for scalar in scalars)
        self._context = make_current(device)
        with beside_capture():
            kernel = jit.kernel(plan.source, plan.kernel, chip(device).arch)
        unit, behind = (64, maps.size) if maps else (8, 0)
        size = -(-(behind + struct.calcsize(layout)) // unit) * unit
        self._memory = ctypes.create_string_buffer(size + unit)
        address = -(-ctypes.addressof(self._memory) // unit) * unit
        self._argument = (ctypes.c_char * size).from_address(address)
        struct.pack_into(layout, self._argument, behind, *[0] * pointers, *[scalar.item() for scalar in scalars])
        self._parameters = (ctypes.c_void_p * 1)(address)
        self._parameters_address = ctypes.addressof(self._parameters)
        write = struct.Struct(f"{pointers}Q").pack_into
        self._write = maps.writer(address, write) if maps else write
        self._function = driver.CUkernel(int(kernel.handle))
        self._device = device.index
        self._config = _config(plan)
        self._stream = None
        self._lock = threading.Lock()
        _expect_argument(self._function, size)
        _allow(self._function, plan, device)

    def __call__(self, *pointers: int) -> None:
        """Launch on PyTorch's current stream of the prepared device; a pointer of 0 stands for None."""
        if torch._C._cuda_getDevice() != self._device:
            with torch.cuda.device(self._device):
                return self(*pointers)
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        with self._lock:
            self._write(self._argument, 0, *pointers)
            if stream != self._stream:
                self._config.hStream = self._stream = stream
            error, = driver.cuLaunchKernelEx(self._config, self._function, self._parameters_address, 0)
        if error:
            self._again(error, pointers)

    def _again(self, error, pointers):
        """A thread that has not used CUDA yet has no context: then with one, else the error."""
        if int(driver.cuCtxGetCurrent()[1]):
            raise_error(error)
        raise_error(driver.cuCtxSetCurrent(self._context)[0])
        self(*pointers)


_untraced: dict = {}


def untraced(function):
    """`function` as torch.compile leaves it alone. Looked up while tracing, so that nobody else loads the tracer."""
    if function not in _untraced:
        _untraced[function] = torch.compiler.disable(function)
    return _untraced[function]


@functools.cache
def chip(device: torch.device) -> Chip:
    """The GPU as plans see it. Clusters are counted with the most shared memory a CTA can have.

    Errors: RuntimeError for one that has not what every kernel needs.
    """
    make_current(device)
    properties = torch.cuda.get_device_properties(device)
    major, minor = properties.major, properties.minor
    if major < 8:
        raise RuntimeError(f"{device} has compute capability {major}.{minor}, but optimized needs 8.0 or later")
    arch = f"sm_{major}{minor}" + ("a" if (major, minor) == (9, 0) else "")
    shared = properties.shared_memory_per_block_optin
    bare = Chip(arch, properties.multi_processor_count, shared)
    if not bare.is_hopper_or_later:
        return bare
    with beside_capture():
        probe = driver.CUkernel(int(jit.kernel("probe.cu", "probe<0>", arch).handle))
    clusters = []
    for size in _CLUSTER_SIZES:
        plan = Plan("probe.cu", "probe<0>", "probe", size, 32, size, shared_bytes=shared)
        _allow(probe, plan, device)
        error, count = driver.cuOccupancyMaxActiveClusters(probe, _config(plan))
        if size > PORTABLE_CLUSTER and error == driver.CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE:
            continue  # not on this chip
        raise_error(error)
        if count:
            clusters.append((size, count))
    return Chip(arch, bare.sms, shared, tuple(clusters))


@contextmanager
def beside_capture():
    """Within it, this thread may do what is no part of a graph that is captured: load a kernel, wait for a copy."""
    mode = _exchange_capture_mode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        yield
    finally:
        _exchange_capture_mode(mode)


def _exchange_capture_mode(mode):
    error, before = driver.cuThreadExchangeStreamCaptureMode(mode)
    raise_error(error)
    return before


@functools.cache
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a contiguous tensor."""
    return tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))


def _code(scalar) -> str:
    code = _SCALARS.get(type(scalar))
    if code is None:
        raise TypeError(f"launch: scalar {scalar!r} is a {type(scalar).__name__}, but must be a numpy.int64, "
                        "numpy.int32 or numpy.float32")
    return code


def _config(plan: Plan) -> driver.CUlaunchConfig:
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = plan.grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = plan.block, 1, 1
    config.sharedMemBytes = plan.shared_bytes
    attributes = []
    if plan.cluster > 1:
        attributes.append(driver.CUlaunchAttribute())
        attributes[-1].id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dimension = attributes[-1].value.clusterDim
        dimension.x, dimension.y, dimension.z = plan.cluster, 1, 1
    if plan.cooperative:
        attributes.append(driver.CUlaunchAttribute())
        attributes[-1].id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attributes[-1].value.cooperative = 1
    if plan.programmatic:
        attributes.append(driver.CUlaunchAttribute())
        attributes[-1].id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attributes[-1].value.programmaticStreamSerializationAllowed = 1
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def _expect_argument(kernel, size: int) -> None:
    """Host and device lay out the argument alike."""
    error, _, expected = driver.cuKernelGetParamInfo(kernel, 0)
    raise_error(error)
    if expected != size:
        raise TypeError(f"launch: the argument has {size} bytes, but the kernel takes {expected}")


_allowed: dict[tuple, int] = {}  # by attribute, kernel and device
_allowing = threading.Lock()


def _allow(kernel, plan: Plan, device: torch.device) -> None:
    """Let the kernel have plan.shared_bytes and plan.cluster. What it was allowed before stays: launches of other plans
    need that."""
    attributes = driver.CUfunction_attribute
    asked = ((attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, plan.shared_bytes),
             (attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, int(plan.cluster > PORTABLE_CLUSTER)))
    with _allowing:
        for attribute, value in asked:
            key = attribute, int(kernel), device.index
            if value <= _allowed.get(key, 0):
                continue
            error, handle = driver.cuDeviceGet(device.index)
            raise_error(error)
            error, = driver.cuKernelSetAttribute(attribute, value, kernel, handle)
            raise_error(error)
            _allowed[key] = value


def make_current(device: torch.device):
    """The device's primary context, current in this thread: the driver needs one, and PyTorch makes it lazily."""
    with torch.cuda.device(device):
        error, context = driver.cuDevicePrimaryCtxRetain(device.index)
        raise_error(error)
        raise_error(driver.cuCtxSetCurrent(context)[0])
    return context


def raise_error(error) -> None:
    """RuntimeError with the driver's words, where it says anything but success."""
    if error:
        _, text = driver.cuGetErrorString(error)
        raise RuntimeError(f"CUDA driver: {error.name}: {text.decode()}")
