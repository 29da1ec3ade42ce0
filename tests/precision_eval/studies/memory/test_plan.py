"""Memory plans: against measured peaks, by hand, over lengths, and the command on a config and a factory."""

import json
import warnings

import pytest
import torch
from torch.nn.attention import SDPBackend

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems import case_by_id
from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.fixes.catalog import FIXES, fix_by_id
from precision_eval.measure.memory import call_memory
from precision_eval.studies.memory.counting import AllocationCounter, scratch_bound_bytes
from precision_eval.studies.memory.devices import DEVICES, Device, device_named
from precision_eval.studies.memory.models import PlannedCall, PlannedModel, is_cache, planned_model
from precision_eval.studies.memory.plan import LONGEST, Planner, largest_within

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch on mixed dtypes in its norm

CASES = (("metavoice-decode", "cpu"), ("attention-decode", "tiny"), ("dia-decode", "tiny"))
CALL = PlannedCall(length=1)
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    "num_hidden_layers": 5, "intermediate_size": 128, "max_position_embeddings": 256, "torch_dtype": "float16",
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 5, "n_positions": 128, "vocab_size": 100}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def planner_of(build):
    model = PlannedModel(name="case", source="", layers=1, default_length=64, make=lambda call, layers: build())
    return Planner(model)


def measured(fix, built):
    """Memory of a call under a fix, or None where it raises or is unsupported."""
    applied = fix.applied(built.model)
    try:
        with applied:
            return call_memory(applied, applied.prepare(built.inputs), model=built.model, device="cpu")
    except (RuntimeError, UnsupportedError):
        return None


def assert_in_range(plan, memory):
    assert plan.stored_bytes == memory.storage_bytes
    assert plan.call_bytes <= memory.allocated_peak_bytes <= plan.call_bytes + plan.workspace_bytes


@pytest.mark.parametrize(("case_id", "size"), CASES)
def test_what_is_measured_lies_in_the_planned_range_under_every_fix(case_id, size):
    def build():
        return case_by_id(case_id).build(size, device="cpu", seed=0)

    planner, built, runs = planner_of(build), build(), 0
    for fix in (fix for fix in FIXES if "eager" in fix.modes):
        plan, memory = planner.plan(CALL, fix), measured(fix, built)
        assert (plan.status == "runs") == (memory is not None), (fix.id, plan.reason)
        if memory is not None:
            assert_in_range(plan, memory)
            runs += 1
    assert runs >= 4
    assert planner.plan(CALL, fix_by_id("dynamo_fallback")).status == "unsupported"


def test_a_plan_that_ignores_the_cast_would_be_noticed():
    case = case_by_id("metavoice-decode-float32")
    memory = measured(fix_by_id("kv_to_query"), case.build("cpu", device="cpu", seed=0))
    uncast = planner_of(lambda: case.build("cpu", device="cpu", seed=0)).plan(CALL, fix_by_id("query_to_half"))
    with pytest.raises(AssertionError):
        assert_in_range(uncast, memory)


def test_what_depends_on_values_is_unsupported_and_does_not_raise():
    class Picky(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum().item() > 0 else x

    planner = planner_of(lambda: BuiltCase(Picky(4, 4), (torch.ones(1, 4),)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = planner.plan(CALL, fix_by_id("as_shipped"))
    assert plan.status == "unsupported"
    assert plan.reason.startswith("cannot be planned: ")
    assert plan.weights_bytes == 4 * (16 + 4)


@pytest.mark.parametrize("square", [0, 3])
@pytest.mark.parametrize("budget", [0, 12, 1000, 10**6, 10**15])
@pytest.mark.parametrize("start", [1, 77, 2048])
def test_the_largest_length_against_its_definition(square, budget, start):
    def size(n):
        return 5 + 7 * n + square * n * n + 100 * (n > 40)

    largest = largest_within(size, budget, least=1, start=start, most=LONGEST)
    assert size(largest) <= budget or largest == 0
    assert largest == LONGEST or size(largest + 1) > budget


def test_the_counter_follows_views_and_releases():
    x = torch.ones(10)
    with AllocationCounter() as counter:
        first = x + 1
        view = first.view(2, 5)
        del first
        assert counter.level_bytes == 40
        half = view.half()
        del view
        assert counter.level_bytes == 20
        del half
    assert (counter.level_bytes, counter.peak_bytes, counter.casts_at_peak_bytes) == (0, 60, 20)


def test_the_bound_on_scratch_by_hand():
    x, table = torch.ones(3, 4, dtype=torch.float16), torch.ones(100, 4, dtype=torch.float16)
    assert scratch_bound_bytes("add", [x, x.float()], [x.float()]) == 4 * 12 + 4 * (12 + 12)
    assert scratch_bound_bytes("embedding", [table, torch.zeros(3, dtype=torch.long)], [x]) == 4 * 12 + 8 * 3
    tiles = torch.get_num_threads() << 20
    assert scratch_bound_bytes("mm", [x, table.T], [torch.ones(3, 100)]) == 2 * (12 + 400) + 4 * 300 + tiles


@pytest.fixture
def config(tmp_path):

    def write(content):
        path = tmp_path / "config.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("content", "cache_bytes", "cls"),
    [
        (LLAMA, 2 * 5 * 2 * 64 * 16 * 2, "LlamaForCausalLM"),  # k and v, layers, kv heads, slots, D, bytes
        (GPT2, 2 * 5 * 4 * 64 * 16 * 4, "GPT2LMHeadModel"),
    ],
)
def test_a_hugging_face_config(config, program, content, cache_bytes, cls):
    import transformers

    arguments = ("--length", 64, "--fix", "as_shipped,full_float32", "--json")
    code, out, _ = program("plan", config(content), *arguments)
    shipped, wide = json.loads(out)["fixes"]
    values = {key: value for key, value in content.items() if key != "model_type"}
    with torch.device("meta"):
        model = getattr(transformers, cls)(transformers.AutoConfig.for_model(content["model_type"], **values))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert (code, json.loads(out)["parameters"]) == (0, parameters)
    assert shipped["cache_bytes"] == cache_bytes
    assert shipped["status"] == wide["status"] == "runs"
    assert wide["weights_bytes"] == 4 * parameters


def test_length_batch_and_the_longest_that_fits(config):
    model = planned_model(str(config(LLAMA)))
    planner, fix = Planner(model), fix_by_id("float16")
    one, two = (planner.plan(PlannedCall(length=64, batch=batch), fix) for batch in (1, 2))
    assert (two.weights_bytes, two.cache_bytes) == (one.weights_bytes, 2 * one.cache_bytes)
    budget = 30 << 20
    longest = planner.plan(PlannedCall(length=64), fix, device_memory_bytes=budget).largest_length
    fits, exceeds = (planner.plan(PlannedCall(length=longest + more), fix).total_high_bytes for more in (0, 1))
    assert fits <= budget < exceeds
    mixed = planner.plan(PlannedCall(length=64, dtype="float32"), fix_by_id("as_shipped"))
    assert mixed.status == "raises"
    with pytest.raises(ParameterError, match="tokens 6 do not fit length 5"):
        planner.plan(PlannedCall(length=5, tokens=6), fix)
    with pytest.raises(ParameterError, match="beyond the 128 learned positions"):
        Planner(planned_model(str(config(GPT2)))).plan(PlannedCall(length=129), fix)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged"),
        ("[]", "model_type is None; expected the config of a causal language model"),
        ({"model_type": "vit"}, "model_type is 'vit'; expected the config of a causal language model"),
        (LLAMA | {"num_hidden_layers": 10**9}, "expected 1 to 1000"),
        (LLAMA | {"torch_dtype": "int8"}, "expected a floating format"),
    ],
)
def test_a_config_that_cannot_be_planned(config, refused, content, message):
    refused(message, "plan", config(content))


FACTORY = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.embedding = nn.LSTM(8, 16, 2, batch_first=True), nn.Embedding(40, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = torch.full((1,), 0.5)

    def forward(self, x):
        return self.head(self.layers(x)[0] * self.scale.to(x.dtype))


def factory():
    return Model().half().eval(), (torch.randn(2, 5, 8),)
"""


def test_a_factory_with_tied_weights_and_a_tensor_that_is_no_buffer(tmp_path, program, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "own.py").write_text(FACTORY, encoding="utf-8")
    asked = (f"{tmp_path / 'own.py'}:factory", "--fix", "as_shipped,full_float32", "--device", "t4")
    document = json.loads(program("plan", *asked, "--json")[1])
    shipped, wide = document["fixes"]
    assert (shipped["status"], wide["status"], wide["fits"]) == ("raises", "runs", True)
    recurrent = 4 * 16 * (8 + 16 + 2) + 4 * 16 * (16 + 16 + 2)
    assert document["parameters"] == recurrent + 40 * 16
    assert wide["weights_bytes"] == 4 * document["parameters"] == 2 * shipped["weights_bytes"]
    code, out, _ = program("plan", *asked)
    assert (code, "as built, in 14 GiB" in out, "longest" in out) == (0, True, False)
    assert "t4: its format is float16; float16 native, bfloat16 emulated, float32 native" in out


CACHED = """
import torch
from torch import nn


class Cached(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.register_buffer("keys", torch.zeros(1, length, 8, dtype=torch.float16))

    def forward(self, x):
        return self.project(x) @ self.keys.to(x.dtype).transpose(1, 2)


def factory(length=4):
    return Cached(length).eval(), (torch.randn(1, 1, 8),)


def fixed():
    return factory()
"""


@pytest.mark.parametrize(("asked", "length"), [((), 4), (("--length", "64"), 64)])
def test_a_factory_is_planned_at_a_length(tmp_path, program, asked, length):
    (tmp_path / "cached.py").write_text(CACHED, encoding="utf-8")
    document = json.loads(program("plan", f"{tmp_path / 'cached.py'}:factory", *asked, "--json")[1])
    fixes = {fix["fix"]: fix for fix in document["fixes"]}
    assert fixes["as_shipped"]["cache_bytes"] == 2 * 8 * length
    assert fixes["full_float32"]["cache_bytes"] == 4 * 8 * length
    assert not {"dynamo_fallback", "upstream"} & fixes.keys()  # what only shipped systems have


def test_a_factory_without_a_length_is_refused_with_the_remedy(tmp_path, refused):
    (tmp_path / "cached.py").write_text(CACHED, encoding="utf-8")
    place = f"{tmp_path / 'cached.py'}:fixed"
    refused("takes no length; write `def fixed(length=...)`", "plan", place, "--length", "64")
    refused("leave out --length", "plan", "metavoice-decode", "--length", "64")


def test_the_format_to_take_on_a_device():
    names = {device.name: device.best_format() for device in DEVICES}
    assert names.pop("t4") == "float16"
    assert set(names.values()) == {"bfloat16"}
    assert Device(name="gtx", memory_bytes=1, compute=(6, 1)).best_format() == "float32"
    assert device_named("cpu").memory_bytes > 1 << 28
    with pytest.raises(UnsupportedError, match="torch sees no 'cuda:99' here"):
        device_named("cuda:99")


def attention(dtype, *, heads=2, shared=8, mask=True):
    class Attends(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("key", torch.zeros(1, heads, 512, 64, dtype=dtype))
            self.register_buffer("mask", torch.ones(1, 1, 1, 512, dtype=torch.bool))

        def forward(self, query):
            return torch.nn.functional.scaled_dot_product_attention(
                query, self.key, self.key, attn_mask=self.mask if mask else None, enable_gqa=True
            )

    return planner_of(lambda: BuiltCase(Attends(), (torch.zeros(1, shared, 1, 64, dtype=dtype),))).model


def call_bytes(model, device):
    planner = Planner(model, device=None if device is None else device_named(device))
    return planner.plan(CALL, fix_by_id("as_shipped")).call_bytes


def fuses_shared_heads():
    """Whether this torch's own kernel on a CPU takes keys that heads share: 2.6 repeats them."""
    query, key = torch.zeros(1, 8, 1, 64), torch.zeros(1, 2, 512, 64)
    return torch._fused_sdp_choice(query, key, key, enable_gqa=True) != SDPBackend.MATH.value


def test_keys_that_heads_share_are_repeated_where_a_gpu_has_no_kernel_for_them():
    repeated = 8 * 512 * 64  # keys and values, and the scaled keys beside them
    fuses = fuses_shared_heads()
    for dtype, mask, devices in (
        (torch.float32, False, {"t4": True, "a100": True, "h200": True}),
        (torch.float16, True, {"t4": True, "a100": True, "h200": False}),
        (torch.float16, False, {"t4": True, "a100": False, "h200": False}),
    ):
        for device, is_plain in devices.items():
            needed = call_bytes(attention(dtype, mask=mask), device)
            repeats = is_plain or not fuses
            assert (needed >= 2 * repeated * dtype.itemsize) == repeats, (dtype, mask, device)
    assert (call_bytes(attention(torch.float32), None) < repeated) == fuses
    assert call_bytes(attention(torch.float32, heads=8), "h200") < repeated
    for compute, is_plain in (((10, 3), False), ((12, 0), True)):  # cuDNN's is first on a B300, not on an RTX 5090
        card = Device(name="cuda", memory_bytes=1, compute=compute)
        assert card.attends_plainly("float16", shares_heads=True, has_mask=True) == is_plain


def test_a_gpu_keeps_a_workspace_for_products_and_only_then():
    for device, library in (("h200", 32 << 20), ("t4", 8519680)):
        for layer, expected in ((torch.nn.Linear(4, 4), library), (torch.nn.ReLU(), 0)):
            model = planner_of(lambda layer=layer: BuiltCase(layer, (torch.zeros(1, 4),))).model
            plan = Planner(model, device=device_named(device)).plan(CALL, fix_by_id("as_shipped"))
            assert plan.library_bytes == expected
            assert plan.total_bytes == plan.stored_bytes + plan.call_bytes + expected


def test_what_measuring_holds_is_the_model_and_what_a_fix_stores_otherwise():
    def build():
        return BuiltCase(
            torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, dtype=torch.float16)), (torch.zeros(1, 4),)
        )

    planner = planner_of(build)
    single, half = 4 * (16 + 4), 2 * (16 + 4)
    held = {name: planner.held_bytes(CALL, fix_by_id(name)) for name in ("kv_to_query", "full_float32", "float16")}
    assert held == {"kv_to_query": single + half, "full_float32": 2 * single + half, "float16": single + 2 * half}


def test_what_timing_all_fixes_holds_by_hand(program):
    """Shipped once, the baseline and its copy in float32, one more half; a cache for each; a graph for each."""

    def build():
        return BuiltCase(torch.nn.Linear(4, 4, dtype=torch.float16), (torch.zeros(1, 4, dtype=torch.float16),))

    planner, weights = planner_of(build), 16 + 4
    plans = [planner.plan(CALL, fix_by_id(name)) for name in ("kv_to_query", "full_float32", "bfloat16")]
    calls = sum(plan.call_bytes for plan in (*plans, plans[1]))
    together = planner.together_bytes(CALL, plans)
    assert together == weights * (2 + 4 + 4 + 2) + calls
    on_card, library = Planner(planner.model, device=device_named("t4")), 8519680
    plans = [on_card.plan(CALL, fix_by_id(name)) for name in ("kv_to_query", "full_float32", "bfloat16")]
    streams = 1 + 2 * (1 + 4)  # the first one; cold and warm: to warm up on, three fixes and the copy
    assert on_card.together_bytes(CALL, plans) == together + streams * library
    for memory, alone in (("1GiB", False), ("128KiB", True)):
        out = program("plan", "attention-decode", "--set", "size=tiny", "--device", memory)[1]
        assert ("each is timed alone" in out) == alone


def test_a_shipped_case_is_planned_at_any_size_without_its_weights(program):
    full, default = planned_model("metavoice-decode-float32", size="full"), planned_model("metavoice-decode-float32")
    parameters = [Planner(model).parameter_count(PlannedCall(length=1)) for model in (full, default)]
    assert parameters[0] > 1e9 > parameters[1]
    document = json.loads(program("plan", "attention-decode", "--set", "size=tiny", "--json")[1])
    assert document["model"] == "attention-decode tiny"


def test_a_size_of_what_has_none_is_refused(refused, tmp_path):
    (tmp_path / "own.py").write_text(FACTORY, encoding="utf-8")
    refused("has none", "plan", f"{tmp_path / 'own.py'}:factory", "--set", "size=full")
    refused("unknown size", "plan", "attention-decode", "--set", "size=huge")


CACHES = ("keys", "layers.0.value", "layer.self_0_value", "block.key_cache", "past_values", "k_cache", "kv_cache")
OTHERS = ("monkey", "query", "mask", "weight", "text", "key.mask", "past_values.mask")


def test_a_buffer_is_a_cache_by_the_names_that_the_fixes_know():
    assert [name for name in (*CACHES, "cache_v", *OTHERS) if is_cache(name)] == [*CACHES, "cache_v"]
