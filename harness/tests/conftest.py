"""Tests marked `gpu` skip, with the reason, where PyTorch has no GPU; benchmarks skip unless they are asked for."""

import pytest
import torch

from harness.environment import record
from harness.sweeps import SWEEPS


def pytest_addoption(parser):
    parser.addoption(
        "--sweep", choices=SWEEPS, default="smoke", help="the cases that --benchmark-only measures; default: smoke"
    )


def pytest_configure(config):
    if not _measures(config):
        config.option.benchmark_skip = True  # and pytest-benchmark has nothing to say of xdist


@pytest.hookimpl(tryfirst=True)  # before pytest-benchmark, whose reasons say less
def pytest_collection_modifyitems(config, items):
    if not torch.cuda.is_available():
        reason = "PyTorch finds no GPU here (torch.cuda.is_available() is False)"
        _skip((item for item in items if "gpu" in item.keywords), reason)
    benchmarks = [item for item in items if "benchmark" in getattr(item, "fixturenames", ())]
    if not _measures(config):
        _skip(benchmarks, "measures only with --benchmark-only or --benchmark-enable")
    elif config.getoption("benchmark_only", False):  # or hundreds of skipped tests would follow the table
        config.hook.pytest_deselected(items=[item for item in items if item not in benchmarks])
        items[:] = benchmarks


def _measures(config):
    return config.getoption("benchmark_only", False) or config.getoption("benchmark_enable", False)


def _skip(items, reason):
    for item in items:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info):
    """Runs that --benchmark-compare puts side by side say so where these differ."""
    found = record()
    gpu = found["gpu"] and found["gpu"]["name"]
    machine_info |= {"gpu": gpu} | {name: found[name] for name in ("driver", "torch", "torch_cuda", "nvrtc")}
