"""Linear layers over 2 and 4 ranks give what one rank gives: gloo on CPUs; one set of processes for all scenarios."""

import pytest
import torch
from torch import multiprocessing

from harness.tests.parallel_worker import SCENARIOS, start
from reference import ops


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, tmp_path_factory):
    """What each rank has to say of each scenario."""
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    multiprocessing.start_processes(start, (request.param, str(folder)), request.param, start_method="spawn")
    return [torch.load(folder / f"{rank}.pt") for rank in range(request.param)]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ranks_together_are_one(ranks, scenario):
    assert [each[scenario] for each in ranks] == [""] * len(ranks)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_gpus_together_are_one(tmp_path):
    multiprocessing.start_processes(start, (2, str(tmp_path), "nccl"), 2, start_method="spawn")
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert {scenario: [each[scenario] for each in found] for scenario in SCENARIOS} == {
        scenario: ["", ""] for scenario in SCENARIOS}


@pytest.mark.parametrize("options, words", [
    ({"tensor_parallel_mode": "diagonal"}, "must be None, 'column' or 'row'"),
    ({"tensor_parallel_mode": "column"}, "torch.distributed is not initialised"),
    ({"sequence_parallel": True}, "tensor_parallel_mode is None"),
    ({"tensor_parallel_group": object()}, "tensor_parallel_mode is None"),
])
def test_a_mode_needs_what_it_needs(options, words):
    with pytest.raises(ValueError, match=words):
        ops.BasicLinear(8, 8, **options)
