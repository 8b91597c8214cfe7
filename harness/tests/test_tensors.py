"""Quantized tensors: their shapes, files and devices, the layout of their scales, and what dequantize refuses."""

import copy
import dataclasses
import re

import pytest
import torch

import optimized
from reference import dequantize, quantize
from reference.formats import E4M3, E5M2
from reference.quantizers import Float8CurrentScalingQuantizer, MXFP8Quantizer, NVFP4Quantizer
from reference.tensors import Float8Tensor, MXFP8Tensor, NVFP4Tensor, swizzle, unswizzle

QUANTIZERS = {Float8Tensor: Float8CurrentScalingQuantizer, MXFP8Tensor: MXFP8Quantizer, NVFP4Tensor: NVFP4Quantizer}
CLASSES = tuple(QUANTIZERS)
ORIENTATIONS = ((True, False), (False, True), (True, True))
SHAPE = (3, 32, 160)


def made(cls, rowwise=True, columnwise=True, shape=SHAPE):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    return quantize(x, QUANTIZERS[cls](rowwise=rowwise, columnwise=columnwise))


def same(one, other):
    tensors, others = one.tensors(), other.tensors()
    return type(one) is type(other) and tensors.keys() == others.keys() and one.shape == other.shape and all(
        torch.equal(value.view(torch.uint8), others[name].view(torch.uint8)) for name, value in tensors.items())


def test_fields_and_shapes():
    """In the order of the surface, (96, 160) as a matrix."""
    assert [field.name for field in dataclasses.fields(Float8Tensor)][:4] == [
        "rowwise_data", "columnwise_data", "scale_inv", "dtype"]
    shapes = {cls: {name: (tuple(value.shape), value.dtype) for name, value in made(cls).tensors().items()}
              for cls in CLASSES}
    assert shapes == {
        Float8Tensor: {"rowwise_data": (SHAPE, E4M3), "columnwise_data": ((160, 96), E4M3),
                       "scale_inv": ((1,), torch.float32)},
        MXFP8Tensor: {"rowwise_data": (SHAPE, E4M3), "rowwise_scale_inv": ((128, 8), torch.uint8),
                      "columnwise_data": (SHAPE, E4M3), "columnwise_scale_inv": ((4, 256), torch.uint8)},
        NVFP4Tensor: {"rowwise_data": ((3, 32, 80), torch.uint8), "rowwise_scale_inv": ((128, 12), E4M3),
                      "rowwise_amax": ((1,), torch.float32), "columnwise_data": ((160, 48), torch.uint8),
                      "columnwise_scale_inv": ((256, 8), E4M3), "columnwise_amax": ((1,), torch.float32)},
    }


@pytest.mark.parametrize("rowwise, columnwise", ORIENTATIONS)
@pytest.mark.parametrize("cls", CLASSES)
def test_shape_and_dtype(cls, rowwise, columnwise):
    """Kept for every rank; where none was given, that of the data."""
    tensor = made(cls, rowwise, columnwise)
    assert tensor.shape == SHAPE and isinstance(tensor.shape, torch.Size) and tensor.dtype == torch.bfloat16
    again = dataclasses.replace(tensor, shape=None)
    assert again.shape == (SHAPE if rowwise or cls is MXFP8Tensor else (96, 160))
    assert torch.equal(again.dequantize().flatten(), tensor.dequantize().flatten())


@pytest.mark.parametrize("cls", CLASSES)
def test_dequantize(cls):
    """The method and the function agree, in every dtype; the rounding is the last thing."""
    tensor = made(cls)
    wide = dequantize(tensor, torch.float32)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        values = dequantize(tensor, dtype)
        assert values.dtype == dtype and values.shape == SHAPE and torch.equal(values, wide.to(dtype))
        assert torch.equal(values, tensor.dequantize(dtype))
    assert torch.equal(tensor.dequantize(), wide.bfloat16())


@pytest.mark.parametrize("rowwise, columnwise", ORIENTATIONS)
@pytest.mark.parametrize("cls", CLASSES)
def test_files_and_copies(cls, rowwise, columnwise, tmp_path):
    """torch.load needs no permission for them, and they come back with their shape."""
    tensor = made(cls, rowwise, columnwise)
    torch.save({"weights": [tensor]}, tmp_path / "file.pt")
    (loaded,) = torch.load(tmp_path / "file.pt", weights_only=True)["weights"]
    assert same(loaded, tensor) and same(copy.deepcopy(tensor), tensor) and loaded.dtype == tensor.dtype
    assert torch.equal(loaded.dequantize(), tensor.dequantize())


@pytest.mark.parametrize("cls", CLASSES)
def test_to(cls):
    tensor = made(cls, columnwise=False)
    moved = tensor.to("meta")
    assert tensor.device.type == "cpu" and moved.device.type == "meta" and moved.shape == tensor.shape
    assert {value.device.type for value in moved.tensors().values()} == {"meta"}
    assert moved.columnwise_data is None
    assert same(tensor.to("cpu"), tensor) and tensor.to("cpu").rowwise_data is tensor.rowwise_data


@pytest.mark.gpu
@pytest.mark.parametrize("cls", CLASSES)
def test_to_a_gpu_and_back(cls):
    assert same(made(cls).to("cuda").to("cpu"), made(cls))


@pytest.mark.parametrize("cls", CLASSES)
def test_repr(cls):
    text = repr(made(cls))
    assert text.startswith(f"{cls.__name__}(shape=(3, 32, 160), dtype=torch.bfloat16, rowwise_data=")
    assert "\n" not in text
    assert "device=cpu" in text and len(text) < 400
    tensors = made(cls).tensors().values()
    assert int(re.search(r"(\d+) bytes", text)[1]) == sum(value.nbytes for value in tensors)
    assert "columnwise" not in repr(made(cls, columnwise=False))


@pytest.mark.parametrize("cls", CLASSES)
def test_frozen(cls):
    with pytest.raises(dataclasses.FrozenInstanceError):
        made(cls).dtype = torch.float16


def test_swizzle_against_the_formula():
    rows, blocks = 256, 12
    scales = torch.arange(rows * blocks).remainder(251).to(torch.uint8).view(rows, blocks)
    flat = torch.zeros(rows * blocks, dtype=torch.uint8)
    for r in range(rows):
        for c in range(blocks):
            tile = r // 128 * (blocks // 4) + c // 4
            flat[512 * tile + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scales[r, c]
    swizzled = swizzle(scales)
    assert swizzled.is_contiguous() and torch.equal(swizzled.flatten(), flat)


@pytest.mark.parametrize("shape", ((128, 4), (256, 8), (384, 20), (0, 4), (128, 0)))
@pytest.mark.parametrize("dtype", (torch.uint8, E4M3), ids=str)
def test_unswizzle_is_the_inverse(shape, dtype):
    codes = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).view(dtype)
    for there, back in ((swizzle, unswizzle), (unswizzle, swizzle)):
        assert there(codes).shape == shape and there(codes).dtype == dtype
        assert torch.equal(back(there(codes)).view(torch.uint8), codes.view(torch.uint8))


def test_every_scale_array_can_be_swizzled():
    mxfp8, nvfp4 = made(MXFP8Tensor), made(NVFP4Tensor)
    for scales in (mxfp8.rowwise_scale_inv, mxfp8.columnwise_scale_inv.t(), nvfp4.rowwise_scale_inv,
                   nvfp4.columnwise_scale_inv):
        assert torch.equal(unswizzle(swizzle(scales)).view(torch.uint8), scales.contiguous().view(torch.uint8))


@pytest.mark.parametrize("function", (swizzle, unswizzle))
@pytest.mark.parametrize("scales, error, words", (
    (torch.zeros(127, 4, dtype=torch.uint8), ValueError, ("(127, 4)", "128", "4")),
    (torch.zeros(128, 3, dtype=torch.uint8), ValueError, ("(128, 3)",)),
    (torch.zeros(512, dtype=torch.uint8), ValueError, ("(512,)", "two dimensions")),
    (torch.zeros(128, 4), TypeError, ("float32", "uint8")),
    ([0], TypeError, ("list", "torch.Tensor")),
))
def test_swizzle_refuses(function, scales, error, words):
    with pytest.raises(error, match=f"^{function.__name__}: scale_inv") as caught:
        function(scales)
    assert [word for word in words if word not in str(caught.value)] == []


def _changed(cls, name, change):
    tensor = made(cls)
    return dataclasses.replace(tensor, **{name: change(getattr(tensor, name))})


BAD = {
    "no quantized tensor": (lambda: torch.ones(3), TypeError, ("tensor", "Tensor", "MXFP8Tensor")),
    "cut data": (lambda: _changed(MXFP8Tensor, "rowwise_data", lambda t: t[:2]), ValueError,
                 ("tensor.rowwise_data", "(2, 32, 160)", "(3, 32, 160)")),
    "cut scales": (lambda: _changed(MXFP8Tensor, "columnwise_scale_inv", lambda t: t[:1]), ValueError,
                   ("tensor.columnwise_scale_inv", "(1, 256)", "(4, 256)")),
    "no scales": (lambda: _changed(NVFP4Tensor, "rowwise_scale_inv", lambda t: None), TypeError,
                  ("tensor.rowwise_scale_inv", "NoneType", "torch.Tensor")),
    "no amax": (lambda: _changed(NVFP4Tensor, "rowwise_amax", lambda t: None), TypeError,
                ("tensor.rowwise_amax", "NoneType")),
    "two scales": (lambda: _changed(Float8Tensor, "scale_inv", lambda t: t.repeat(2)), ValueError,
                   ("tensor.scale_inv", "(2,)", "(1,)")),
    "wide scale": (lambda: _changed(Float8Tensor, "scale_inv", lambda t: t.double()), TypeError,
                   ("tensor.scale_inv", "float64", "float32")),
    "wide data": (lambda: _changed(Float8Tensor, "rowwise_data", lambda t: t.half()), TypeError,
                  ("tensor.rowwise_data", "float16", "float8_e5m2")),
    "byte scales": (lambda: _changed(NVFP4Tensor, "rowwise_scale_inv", lambda t: t.view(torch.uint8)), TypeError,
                    ("tensor.rowwise_scale_inv", "uint8", "float8_e4m3fn")),
    "strides": (lambda: _changed(Float8Tensor, "columnwise_data", lambda t: t.t().contiguous().t()), ValueError,
                ("tensor.columnwise_data", "strides", "contiguous")),
    "elsewhere": (lambda: _changed(MXFP8Tensor, "rowwise_scale_inv", lambda t: t.to("meta")), ValueError,
                  ("tensor.rowwise_scale_inv", "meta", "cpu")),
    "two dtypes": (lambda: _changed(MXFP8Tensor, "columnwise_data", lambda t: t.view(E5M2)), TypeError,
                   ("tensor.columnwise_data", "float8_e5m2", "float8_e4m3fn")),
    "no dimensions": (lambda: Float8Tensor(torch.ones(()).to(E4M3), None, torch.ones(1), torch.float32), ValueError,
                      ("tensor", "no dimensions")),
    "odd blocks": (lambda: dataclasses.replace(made(NVFP4Tensor, columnwise=False, shape=(16, 32)),
                                               rowwise_data=torch.zeros(16, 12, dtype=torch.uint8), shape=(16, 24)),
                   ValueError, ("tensor", "24", "cols", "16")),
}


@pytest.mark.parametrize("make, error, words", BAD.values(), ids=BAD)
def test_dequantize_refuses(make, error, words):
    check_refused(dequantize, make(), error, words)


@pytest.mark.gpu
@pytest.mark.parametrize("make, error, words", BAD.values(), ids=BAD)
def test_optimized_dequantize_refuses(make, error, words):
    """Before memory is allocated; tensors that are on no GPU are refused for what else is wrong with them."""
    def allocates(shape, dtype, device):
        raise AssertionError("memory was allocated before the arguments were refused")

    with optimized.launch.allocator(allocates):
        check_refused(optimized.dequantize, make(), error, words)


@pytest.mark.parametrize("cls", CLASSES)
def test_optimized_refuses_cpu_tensors(cls):
    with pytest.raises(ValueError, match="^dequantize: tensor is on cpu, but .* CUDA"):
        optimized.dequantize(made(cls), torch.float32)


def check_refused(dequantize, tensor, error, words):
    with pytest.raises(error) as caught:
        dequantize(tensor, torch.float32)
    message = str(caught.value)
    assert type(caught.value) is error and message.startswith("dequantize: ") and "\n" not in message
    assert [word for word in words if word not in message] == [], message


@pytest.mark.parametrize("dtype", (torch.float64, E4M3, torch.int8, None, "float32"))
def test_dequantize_refuses_a_dtype(dtype):
    with pytest.raises(TypeError, match="^dequantize: dtype is .*, but must be"):
        dequantize(made(Float8Tensor), dtype)
    if dtype is not None:
        with pytest.raises(TypeError, match="^dequantize: dtype is .*, but must be"):
            made(Float8Tensor).dequantize(dtype)


@pytest.mark.parametrize("cls", CLASSES)
def test_needs_data(cls):
    fields = {field.name: None for field in dataclasses.fields(cls)} | {"dtype": torch.float32}
    with pytest.raises(ValueError, match=f"^{cls.__name__}: rowwise_data and columnwise_data are None"):
        cls(**fields)
    with pytest.raises(TypeError, match=f"^{cls.__name__}: .*list.*torch.Tensor"):
        cls(**fields | {"rowwise_data": [1]})
    with pytest.raises(ValueError, match=f"^{cls.__name__}: columnwise_data has 1 dimensions"):
        cls(**fields | {"columnwise_data": torch.ones(16)})
