"""Tensor maps: what the copy engine knows of a matrix and of the boxes it moves."""

import ctypes

from cuda.bindings import driver

from optimized.matrices import Matrix
from optimized.plan import SIZES, round_up

BYTES = 128
_TYPES = {
    "bf16": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    "f16": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    "f32": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
}
_SWIZZLES = {
    64: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B, 128: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
}
_SOMEWHERE = 1 << 20  # an address that the driver accepts


def encode(element: str, shape: tuple[int, int], pitch_bytes: int, box: tuple[int, int],
           row_bytes: int) -> driver.CUtensorMap:
    """The map of a matrix (rows, cols) of `element`s whose rows lie `pitch_bytes` apart, moved in boxes (rows, cols).
    Rows of a box have `row_bytes`, 64 or 128, and are swizzled by as much. It has no address yet. Needs a driver.

    Errors: RuntimeError where the driver refuses, such as for a pitch that is no multiple of 16 bytes.
    """
    error, encoded = driver.cuTensorMapEncodeTiled(
        _TYPES[element], 2, _SOMEWHERE, [driver.cuuint64_t(shape[1]), driver.cuuint64_t(shape[0])],
        [driver.cuuint64_t(pitch_bytes)], [driver.cuuint32_t(box[1]), driver.cuuint32_t(box[0])],
        [driver.cuuint32_t(1), driver.cuuint32_t(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, _SWIZZLES[row_bytes],
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    if error:
        raise RuntimeError(f"tensor map: {error.name} for {element} {shape}, pitch {pitch_bytes} bytes, box {box}")
    return encoded


def of_matrix(matrix: Matrix, box: tuple[int, int], row_bytes: int) -> driver.CUtensorMap:
    """The map of a matrix whose rows begin at multiples of 16 bytes; a single row may end between them."""
    pitch = round_up(matrix.pitch * SIZES[matrix.element], 16)
    return encode(matrix.element, (matrix.rows, matrix.cols), pitch, box, row_bytes)


class Maps:
    """Tensor maps at the head of a kernel's argument. `encoded`: each, or None for one that is not used; `sources`:
    which value of a call is its address; `rest`: which values follow the maps."""

    def __init__(self, encoded: tuple[driver.CUtensorMap | None, ...], sources: tuple[int, ...], rest: tuple[int, ...]):
        self._encoded, self._sources, self._rest = encoded, sources, rest
        self.size = BYTES * len(encoded)

    def writer(self, address: int, write):
        """What writes the values of a call into the argument at `address`; `write` packs the rest."""
        places = []
        for i, (encoded, source) in enumerate(zip(self._encoded, self._sources)):
            if encoded:
                place = driver.CUtensorMap(_ptr=address + BYTES * i)
                ctypes.memmove(place.getPtr(), encoded.getPtr(), BYTES)
                places.append((i, place, source))
        addresses = [0] * len(self._encoded)

        def write_argument(argument, _, *values):
            for i, place, source in places:
                if values[source] != addresses[i]:
                    error, = driver.cuTensorMapReplaceAddress(place, values[source])
                    if error:
                        raise RuntimeError(f"tensor map: {error.name} for a tensor at {values[source]:#x}")
                    addresses[i] = values[source]
            write(argument, self.size, *[values[i] for i in self._rest])

        return write_argument
