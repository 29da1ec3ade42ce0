"""What workers inherit of the compiler, and that compiled code from a cache is the code that was compiled."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads what a process has mapped from /proc")

ASKED = """
import json, os, threading
import precision_eval.run.warm_compiler
import torch
from torch._inductor import cpu_vec_isa
asked = cpu_vec_isa.valid_vec_isa_list.cache_info().currsize
print(json.dumps([asked, threading.active_count(), len(os.listdir("/proc/self/task")), torch.cuda.is_initialized()]))
"""

COMPILED = """
import hashlib, json, os, sys
import torch
from torch._dynamo.utils import counters
torch.set_num_threads(1)
def call(x, w, scale):
    return torch.nn.functional.silu(x @ w) * scale
generator = torch.Generator().manual_seed(0)
x, w = torch.randn(8, 64, generator=generator), torch.randn(64, 64, generator=generator)
cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]
compiled = torch.compile(call, dynamic=False)
def found(scale):
    with torch.no_grad():
        y = compiled(x, w, scale)
    maps = {line.split()[-1] for line in open("/proc/self/maps")}
    code = {path: hashlib.sha256(open(path, "rb").read()).hexdigest() for path in maps
            if path.startswith(cache) and path.endswith(".so")}
    return {"hits": counters["inductor"]["fxgraph_cache_hit"], "code": code,
            "output": hashlib.sha256(y.numpy().tobytes()).hexdigest()}
print(json.dumps([found(float(scale)) for scale in sys.argv[1:]]))
"""


def run(script, *arguments, cache=None):
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"TORCHINDUCTOR_CACHE_DIR": str(cache)} if cache else {})
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@LINUX
@pytest.mark.slow
def test_the_fork_server_asks_once_and_starts_no_thread():
    assert run(ASKED) == [1, 1, 1, False]


@LINUX
@pytest.mark.slow
def test_a_compiled_call_from_the_cache_is_the_same_code(tmp_path):
    (first,) = run(COMPILED, "2.0", cache=tmp_path)
    again, other = run(COMPILED, "2.0", "3.0", cache=tmp_path)
    assert (first["hits"], again["hits"]) == (0, 1)
    kernels = [path for path in again["code"] if path in first["code"]]
    assert kernels, "the second process mapped no library that the first compiled"
    assert again["code"].items() <= first["code"].items()  # the same files, byte for byte; the first also probed
    assert again["output"] == first["output"]
    assert other["hits"] == 1  # planted: another graph is no hit, and other code
    assert other["output"] != first["output"]
    assert set(other["code"]) - set(first["code"])
