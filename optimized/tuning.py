"""Tiles that were measured to be faster than the model's choice, remembered on disk (`python -m harness tune`).

An entry holds for one kind of GPU, one driver, the kernel's sources as they are, and products whose sizes are the same
in units of 128. Nothing is read where nothing was ever tuned.
"""

import fcntl
import functools
import hashlib
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from cuda.bindings import driver

from optimized import jit
from optimized.gemm_tiles import TILES, Tile
from optimized.linear_plan import Product
from optimized.plan import Chip

FILE = jit.CACHE / "tiles.json"
UNIT = 128  # of the sizes in a key
MODEL = "model"
_TILES = {tile.name: tile for tiles in TILES.values() for tile in tiles}


def choice(products: tuple[Product, ...], chip: Chip) -> Tile | None:
    """The tile that was fastest for `products`; None where that is the model's, or nobody measured."""
    remembered = _read()
    return _TILES.get(remembered.get(_key(products, chip), MODEL)) if remembered else None


def remember(products: tuple[Product, ...], chip: Chip, tile: Tile | None) -> None:
    """Keep what was fastest; None for the model's choice. The file is replaced as a whole, by one process at a time."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    with open(FILE.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _load.cache_clear()
        entries = _read() | {_key(products, chip): MODEL if tile is None else tile.name}
        handle, name = tempfile.mkstemp(dir=FILE.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(entries, file, indent=1, sort_keys=True)
        os.replace(name, FILE)
    _load.cache_clear()


def _read() -> dict[str, str]:
    try:
        return _load(FILE, FILE.stat().st_mtime_ns)
    except OSError:
        return {}


@functools.lru_cache(maxsize=2)
def _load(file: Path, _: int) -> dict[str, str]:
    """The entries; none of a file that is not what `remember` writes."""
    try:
        entries = json.loads(file.read_text())
    except ValueError:
        return {}
    whole = isinstance(entries, dict) and all(isinstance(name, str) for name in entries.values())
    return entries if whole else {}


def _key(products: tuple[Product, ...], chip: Chip) -> str:
    sizes = tuple(replace(p, **{name: -(-getattr(p, name) // UNIT) * UNIT for name in "mnk"}) for p in products)
    return hashlib.sha256(repr((sizes, chip, _driver_version(), _sources())).encode()).hexdigest()


@functools.cache
def _driver_version() -> int:
    try:
        error, version = driver.cuDriverGetVersion()
    except RuntimeError:  # there is no driver here
        return 0
    return 0 if error else version


@functools.cache
def _sources() -> str:
    return jit.source_digest("gemm.cu").hex()
