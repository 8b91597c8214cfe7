"""Which cases a run takes: shards, launchers, what a folder already has; and what memory a case needs."""

from dataclasses import replace
from weakref import finalize

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness import memory, parity, rows, schedule
from harness.backend_cpu import Cpu
from harness.case_run import blank
from harness.cases import FAMILIES, PRODUCTS, Case
from harness.folder import Known
from harness.implementations import IMPLEMENTATIONS
from harness.options import Options, UsageError, cases, of_launcher, parse_devices, parse_shard
from harness.place import of_gpus

TWO = [(0, "GPU-a", "NVIDIA H200"), (1, "GPU-b", "NVIDIA H200"), (2, "GPU-c", "NVIDIA B200")]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_shares_are_disjoint_whole_and_balanced(count):
    every = cases(Options(sweep="llm"))
    shares = [schedule.share(every, (number, count)) for number in range(1, count + 1)]
    assert sorted((case.name for share in shares for case in share)) == sorted(case.name for case in every)
    costs = [sum(map(schedule.about_s, share)) for share in shares]
    assert max(costs) - min(costs) <= max(map(schedule.about_s, every))
    assert all(share == sorted(share, key=every.index) for share in shares)


def test_shares_of_a_cpu_are_shares_of_what_it_measures():
    whole = schedule.tasks(Options(sweep="edge"), Cpu())[1]
    parts = [schedule.tasks(Options(sweep="edge", shard=(number, 3)), Cpu())[1] for number in (1, 2, 3)]
    assert sorted(map(repr, whole)) == sorted(repr(task) for part in parts for task in part)


def test_families_come_one_after_the_other(monkeypatch):
    class Other:
        """Stands for a family of another file."""

        def __init__(self, family):
            self.work = family.work

    monkeypatch.setitem(FAMILIES, "rmsnorm_fwd", Other(FAMILIES["rmsnorm_fwd"]))
    found = [task.family for task in schedule.tasks(Options())[1]]
    assert len(set(found)) == 6 and found == sorted(found, key=found.index)
    assert sum(a != b for a, b in zip(found, found[1:])) == 5


def test_a_process_of_torchrun_has_its_share_its_gpu_and_its_folder(tmp_path):
    environ = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    found = of_launcher(Options(out=tmp_path), environ)
    assert (found.shard, found.devices, found.out) == ((2, 4), (1,), tmp_path / "shard-2-of-4")
    assert of_launcher(Options(devices=(3,)), environ).devices == (3,)
    for alone in (Options(shard=(1, 2)), Options()):
        assert of_launcher(alone, environ if alone.shard != (1, 1) else {}) == alone
    assert of_launcher(Options(), {"WORLD_SIZE": "1", "RANK": "0"}) == Options()


@pytest.mark.parametrize("environ", [{"WORLD_SIZE": "2"}, {"WORLD_SIZE": "2", "RANK": "2"},
                                     {"WORLD_SIZE": "x", "RANK": "0"}, {"WORLD_SIZE": "2", "RANK": "-1"}])
def test_senseless_variables_of_a_launcher_are_refused(environ):
    with pytest.raises(UsageError, match="torchrun"):
        of_launcher(Options(), environ)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2", "1.5/2", ""])
def test_a_shard_is_one_of_several(text):
    with pytest.raises(UsageError, match="I/N"):
        parse_shard(text)


def test_devices_are_numbers_each_once():
    assert parse_devices("1,0, 1") == (1, 0)
    for text in ("", "a", "0,", "-1", "0 1"):
        with pytest.raises(UsageError, match="list of device numbers"):
            parse_devices(text)


def test_devices_are_there_and_alike():
    assert of_gpus(Options(), TWO).indices == (0,)
    assert of_gpus(Options(devices=(1, 0)), TWO).indices == (1, 0)
    with pytest.raises(UsageError, match="--devices 4: there is no such GPU; there are: 0, 1, 2"):
        of_gpus(Options(devices=(4,)), TWO)
    with pytest.raises(UsageError, match=r"NVIDIA H200 \(1\) and NVIDIA B200 \(2\) differ"):
        of_gpus(Options(devices=(1, 2)), TWO)


def test_what_is_known_is_not_run_again_and_what_failed_is_run_as_a_whole():
    case, other = Case("rmsnorm_fwd", (4, 8)), Case("rmsnorm_fwd", (5, 8))
    planned = [schedule.Task(case, ("reference", "copy")), schedule.Task(other, ("reference", "copy"))]
    found = [blank(case, "reference", seed=0, device="cpu") | {"status": "OK"},
             blank(case, "copy", seed=0, device="cpu") | {"status": "TIMEOUT"}]
    assert schedule.missing(planned, 0, "cpu", Known(found)) == planned[1:]
    assert schedule.missing(planned, 0, "cpu", Known(found, mend=True)) == planned
    assert schedule.missing(planned, 1, "cpu", Known(found)) == planned
    assert schedule.missing(planned, 0, "cpu", Known(found[:1])) == [schedule.Task(case, ("copy",)), planned[1]]


@pytest.mark.parametrize("status", rows.STATUSES)
def test_what_a_rerun_mends(status):
    row = rows.row(status=status)
    assert Known([row], mend=True).mendable(row) == (status not in ("OK", "UNSUPPORTED", "SKIPPED"))
    assert Known([row]).stands(row) and not Known([row]).mendable(row)


class Peak(TorchDispatchMode):
    """The most bytes that tensors made under it held at once."""

    def __init__(self):
        super().__init__()
        self.held, self.now, self.bytes = {}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage())._cdata not in self.held:
                self.held[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                self.bytes = max(self.bytes, self.now)
                finalize(storage, self.drop, storage._cdata)
        return made

    def drop(self, key):
        self.now -= self.held.pop(key, 0)


KINDS = {(case.function, case.recipe): case for case in reversed(cases(Options(sweep="smoke")))}


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_memory_covers_what_parity_holds_and_not_much_more(kind):
    case = replace(KINDS[kind], shape=(256, 512, 384) if kind[0] in PRODUCTS else (256, 512))
    run = IMPLEMENTATIONS["reference"].prepare(case, None)
    with Peak() as peak:
        assert parity.check(case, run, "cpu", adversarial=False).ok
    assert peak.bytes <= memory.needed_bytes(case, ["reference"], "cpu") <= 2.4 * peak.bytes


def test_memory_of_timing_grows_with_what_takes_turns():
    small = Case("rmsnorm_fwd", (4, 1024))
    alone, three = (memory.needed_bytes(small, names) for names in (["reference"], ["reference", "optimized", "copy"]))
    assert alone < three < 1e9
    huge = Case("rmsnorm_bwd_add", (1 << 20, 1 << 16))
    assert memory.needed_bytes(huge, ["reference"]) > 5 * (1 << 37)


def test_no_case_needs_less_than_its_tensors():
    for case in cases(Options(sweep="all")):
        assert memory.needed_bytes(case, ["optimized"]) >= FAMILIES[case.function].work(case).bytes


def test_what_is_confirmed_on_a_gpu_is_held_beside_what_was_timed():
    case = Case("rmsnorm_bwd", (1 << 18, 8192))
    names, work = ["reference", "optimized"], FAMILIES[case.function].work(case)
    parity, timed = (memory.needed_bytes(case, names, timed=timed) for timed in (False, True))
    assert timed >= parity + 2 * work.written_bytes + memory.REFERENCE_BYTES * work.bytes // 2
    assert memory.needed_bytes(case, names, "cpu") < timed
