"""Rows of a run that never was: an H200 on which every norm runs at a plausible rate."""

from harness import rows
from harness.cases import PRODUCTS, family_of
from harness.ceilings import Ceilings
from harness.implementations import suited
from harness.subject import work_fields
from harness.samples import speedup, summarize
from harness.sweeps import sweep

H200 = Ceilings(copy_tbs=4.21, read_tbs=4.30, write_tbs=4.60, product_tflops=775.0, tick_us=0.032, fp8_tflops=1390.0)
SPEED = {"optimized": 0.92, "copy": 0.97, "reference": 0.13, "cublas": 0.9, "unfused": 0.7}
RUNS = [
    {
        "hash": "0123456789ab",
        "started": "2026-01-31T12:00:00Z",
        "command": "python -m harness bench",
        "environment": {
            "torch": "2.11.0+cu130",
            "nvrtc": "13.0",
            "driver": "580.0",
            "git": {"commit": "a" * 40, "dirty": False},
        },
        "ceilings": H200.to_dict(),
        "clocks": None,
    }
]


def timing(median):
    return summarize([median * (1 + 0.001 * (i - 5)) for i in range(11)]).to_dict()


def took_us(case, name):
    return 2 + H200.limit_us(family_of(case.function).work(case)) / (SPEED[name] - 0.02 * (case.hidden % 5))


def replicates(median, name):
    """Five medians, those of an implementation always in the same order."""
    return [median * (1 + 0.002 * ((ord(name[0]) * i + i) % 5 - 2)) for i in range(5)]


def gpu_row(case, name, **changes):
    work, took = family_of(case.function).work(case), took_us(case, name)
    medians, over = replicates(took, name), "cublas" if case.function in PRODUCTS else "reference"
    errors = {
        "max": 3.5e-3 + 1e-8 * case.hidden,
        "rms": 1e-3,
        "reference_max": 3.6e-3 - 1e-8 * case.shape[0],
        "reference_rms": 1e-3,
    }
    parity = None if name == "copy" else {"ok": True, "reason": "", "errors": {"y": errors}, "seeds": 3}
    fields = dict(
        function=case.function,
        implementation=name,
        shape=case.shape_text,
        dtype=case.dtype,
        recipe=case.recipe,
        options=dict(case.options),
        seed=0,
        case=case.name,
        status="OK",
        reason="",
        graph_us=timing(took),
        cold_us=timing(took * 1.1 + 1),
        warm_us=timing(took),
        replicates={"graph_us": medians},
        speedup=speedup(replicates(took_us(case, over), over), medians),
        gpu_state={"sm_mhz": 1980 - case.shape[0] // 100, "memory_mhz": 3201, "power_w": 512.0, "temperature_c": 41,
                   "reasons": ["sw_power_cap"] if case.shape[0] > 8192 else []},
        host_us=8.0,
        percent_of_limit=H200.percent(work, took),
        parity=parity,
        gpu="NVIDIA H200",
        device="cuda",
        time="2026-01-31T12:00:01Z",
        environment="0123456789ab",
        repeat=f'python -m harness bench --case "{case.name}" --impl {name} --seed 0',
        **work_fields(work),
    )
    return rows.row(**(fields | changes))


def gpu_rows(name="llm", recipe="none"):
    cases = [case for case in sweep(name) if case.recipe == recipe]
    return [gpu_row(case, implementation) for case in cases for implementation in suited(case, list(SPEED), False)]


def cpu_rows():
    made = []
    for index, case in enumerate(sweep("smoke")):
        for name in ("reference", "compiled")[: 2 - index % 2]:
            time = timing(3000.0 if name == "reference" else 900.0)
            made.append(
                gpu_row(
                    case,
                    "reference",
                    implementation=name,
                    gpu=None,
                    device="cpu",
                    warm_us=time,
                    graph_us=None,
                    cold_us=None,
                    percent_of_limit=None,
                    replicates=None,
                    speedup=None,
                    gpu_state=None,
                )
            )
    return made + [compile_row(index) for index in range(6)]


def compile_row(index):
    kernel = {
        "source": "norm_forward.cu",
        "kernel": f"rmsnorm_forward<bf16, {1 << index}>",
        "registers": 40 + 8 * index,
        "spill_bytes": 0,
        "shared_bytes": 1024 * index,
    }
    return rows.row(
        kind="compile",
        function="rmsnorm_fwd",
        implementation="optimized",
        case=kernel["kernel"],
        dtype="bf16",
        recipe="none",
        options={},
        status="OK",
        reason="",
        compile_ms=60.0 + index,
        cache_hit=False,
        kernel=kernel,
        device="cpu",
        seed=0,
        environment="0123456789ab",
        repeat="python -m harness bench",
    )
