"""Tuning: what is remembered of measured tiles, when it holds, and which tile wins."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from harness import tune
from harness.__main__ import main
from harness.cases import Case
from optimized import gemm, tuning
from optimized.gemm_tiles import TILES
from optimized.linear_plan import Product
from optimized.plan import H200

ASKED = (Product(4096, 1000, 1024, "bf16", "bf16"),)
TILE = TILES["Forward", "Stores"][2]


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "FILE", tmp_path / "cache" / "tiles.json")
    return tuning.FILE


def test_nothing_is_known_before_anything_was_measured():
    assert tuning.choice(ASKED, H200) is None


def test_what_is_remembered_is_found_again_and_only_that():
    tuning.remember(ASKED, H200, TILE)
    assert tuning.choice(ASKED, H200) == TILE
    assert tuning.choice((replace(ASKED[0], m=4095),), H200) == TILE, "the same in units of 128"
    for other in (replace(ASKED[0], m=4097), replace(ASKED[0], adds=True), replace(ASKED[0], element="f16")):
        assert tuning.choice((other,), H200) is None
    assert tuning.choice(ASKED, replace(H200, sms=114)) is None
    tuning.remember(ASKED, H200, None)
    assert tuning.choice(ASKED, H200) is None


def test_other_kernels_are_other_measurements(monkeypatch):
    tuning.remember(ASKED, H200, TILE)
    monkeypatch.setattr(tuning, "_sources", lambda: "changed")
    assert tuning.choice(ASKED, H200) is None


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 1}'])
def test_a_damaged_file_counts_as_none(file, content):
    file.parent.mkdir()
    file.write_text(content)
    assert tuning.choice(ASKED, H200) is None
    tuning.remember(ASKED, H200, TILE)
    assert tuning.choice(ASKED, H200) == TILE and json.loads(file.read_text())


def test_a_tile_that_is_none_counts_as_none(file):
    file.parent.mkdir()
    for entry in (["PingPong 128x128"], {}, None, "PingPong 1x1"):
        file.write_text(json.dumps({tuning._key(ASKED, H200): entry}))
        assert tuning.choice(ASKED, H200) is None


def test_plans_take_what_was_measured_unless_a_tile_is_forced():
    tuning.remember(ASKED, H200, TILE)
    assert gemm.planned(ASKED, H200).tile == TILE
    other = TILES["Forward", "Stores"][0]
    with gemm.forced_tile(other):
        assert gemm.planned(ASKED, H200).tile == other
        with gemm.forced_tile(None):
            assert gemm.planned(ASKED, H200).tile != TILE
    assert gemm.planned(ASKED, H200).tile == TILE


class Timer:
    """A GPU on which a forced tile takes the time that `us` says."""

    name = "meta"

    def __init__(self, us):
        self.us = us

    def chip(self):
        return H200

    def time(self, case, call, runs):
        for (subject, _), us in zip(runs, self.us, strict=True):
            subject.fields |= {"replicates": {"graph_us": us}, "graph_us": {"median": sorted(us)[len(us) // 2]}}


MODEL, SLOW = [10.0, 10.1, 9.9, 10.0], [12.0, 12.0, 12.1, 12.0]


@pytest.mark.parametrize("third, wins", [([9.0, 9.1, 8.9, 9.0], True), ([9.98, 9.99, 9.97, 9.98], False),
                                         ([5.0, 15.0, 5.0, 15.0], False)], ids=["faster", "hardly", "noisy"])
def test_a_tile_must_be_faster_beyond_doubt(third, wins):
    case = Case("linear_fwd", (4096, 1000, 1024))
    asked, tiles = tune.candidates(case, H200)
    found = tune._tuned(Timer([MODEL] + [third if tile == tiles[2] else SLOW for tile in tiles]), case)
    assert tuning.choice(asked, H200) == (tiles[2] if wins else None)
    assert found.tile == (tiles[2].name if wins else "model") and found.line()


def test_a_product_of_the_general_path_is_left_alone():
    assert tune._tuned(Timer([]), Case("linear_fwd", (64, 64, 63))) is None


def test_without_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr("harness.__main__.gpu_present", lambda: False)
    assert main(["tune", "--function", "linear_fwd"]) == 3
    assert "nothing to tune" in capsys.readouterr().err
    assert main(["tune", "--sweep", "nonsense"]) == 2
    assert "unknown sweep" in capsys.readouterr().err


CASES = [Case("linear_fwd", (size, 1000, 1024)) for size in (4096, 2048, 1024)]


def test_a_case_that_fails_costs_itself(capsys, monkeypatch):
    class Failing(Timer):
        def __init__(self, *_):
            super().__init__([MODEL] + [SLOW] * len(TILES["Forward", "Stores"]))

        def time(self, case, call, runs):
            if case is CASES[1]:
                raise RuntimeError("CUDA out of memory")
            super().time(case, call, runs)

        def alive(self):
            return True

    monkeypatch.setattr("harness.backend_gpu.Gpu", Failing)
    assert tune.show(CASES) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "OOM" in lines[1] and "model" in lines[2] and lines[3].startswith("2 products")


def test_a_share_on_a_device_of_its_own(monkeypatch):
    given = []
    monkeypatch.setattr("harness.__main__.gpu_present", lambda: True)
    monkeypatch.setattr(tune, "show", lambda *arguments: given.append(arguments) or 0)
    named = [word for case in CASES for word in ("--case", case.name)]
    assert main(["tune", *named, "--seed", "7", "--shard", "1/2"]) == main(["tune", *named, "--shard", "2/2"]) == 0
    assert sorted(given[0][0] + given[1][0], key=CASES.index) == CASES and given[0][1:] == (0, 7)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert main(["tune", *named]) == 0 and given[2] == (given[1][0], 1, 0)


def test_processes_that_tune_at_once_lose_nothing(file):
    script = ("import sys; from pathlib import Path; from dataclasses import replace; from optimized import tuning\n"
              "from harness.tests.test_tune import ASKED, H200, TILE\n"
              "tuning.FILE = Path(sys.argv[1])\n"
              "for i in range(20):\n"
              " tuning.remember((replace(ASKED[0], m=(100 * int(sys.argv[2]) + i) * 128),), H200, TILE)")
    running = [subprocess.Popen([sys.executable, "-c", script, str(file), str(number)]) for number in (1, 2)]
    assert [process.wait() for process in running] == [0, 0]
    assert len(json.loads(file.read_text())) == 40
