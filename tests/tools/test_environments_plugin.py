import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from precision_eval.core.errors import ParameterError
from tools.torch_versions.environments import NOTE_NAME, Note

ROOT = Path(__file__).resolve().parents[2]
NOTE = Note(
    **{"version": "2.8.0", "python": "3.11.7", "torch_version": "2.8.0+cu128", "numpy": "2.3.5", "blas": "mkl"},
    **{"build": "slim", "cuda": "12.8", "stubs": (), "installed_by": "uv", "bytes": 1, "seconds": 1.0},
)


@pytest.fixture
def plugin(monkeypatch):
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("asv_torch_env", ROOT / "asv_torch_env.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(plugin, tmp_path, requirements=None):
    from asv.config import Config

    raw = json.loads((ROOT / "asv.versions.json").read_text(encoding="utf-8"))
    raw["env_dir"] = str(tmp_path)
    return plugin.TorchVersion(Config.from_json(raw), "3.11", requirements or {"torch": "2.8.0"}, {})


def finish(tmp_path):
    folder = tmp_path / "torch2.8.0-py3.11"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / NOTE_NAME).write_text(json.dumps(asdict(NOTE)))


def test_asv_takes_the_plugin_by_its_name(plugin):
    from asv.environment import get_environment_class_by_name

    raw = json.loads((ROOT / "asv.versions.json").read_text(encoding="utf-8"))
    assert raw["plugins"] == [".asv_torch_env"]
    assert get_environment_class_by_name(raw["environment_type"]).tool_name == plugin.TorchVersion.tool_name


def test_the_build_is_recorded_once_it_is_known(plugin, tmp_path):
    environment = made(plugin, tmp_path)
    assert not environment.check_presence()
    assert environment.env_vars == {}
    finish(tmp_path)
    assert environment.check_presence()
    assert environment.env_vars == {"TORCH_BUILD": "slim"}
    assert environment.name == "torch-py3.11-torch2.8.0"  # the name does not depend on it: results are found again


def test_a_missing_one_is_made_as_the_sweep_makes_it(plugin, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setenv("PRECISION_EVAL_TORCH_BUILD", "cuda")

    def build(wanted, **options):
        asked.append((wanted.version, wanted.python, wanted.root, options["build"]))
        finish(tmp_path)
        return NOTE

    monkeypatch.setattr(plugin, "build_environment", build)
    made(plugin, tmp_path).create()
    assert asked == [("2.8.0", "3.11", ROOT, "cuda")]


def test_what_fails_is_asvs_own_error(plugin, tmp_path, monkeypatch):
    from asv.util import UserError

    def refuse(*args, **options):
        raise ParameterError("several GB")

    monkeypatch.setattr(plugin, "build_for_here", refuse)
    with pytest.raises(UserError, match="several GB"):
        made(plugin, tmp_path).create()
    assert not (tmp_path / "torch2.8.0-py3.11").exists()


def test_asv_s_own_environment_is_filled_in_one_go_and_named_as_before(tmp_path, monkeypatch):
    from asv.config import Config
    from asv.environment import get_environment_class_by_name

    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("asv_uv_env", ROOT / "asv_uv_env.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    raw = json.loads((ROOT / "asv.conf.json").read_text(encoding="utf-8"))
    assert raw["plugins"] == [".asv_uv_env"]
    kind = get_environment_class_by_name(raw["environment_type"])
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    config = Config.from_json({**raw, "env_dir": str(tmp_path)})
    environment = kind(config, python, {"torch": "2.13.0", "numpy": "2.3.5"}, {})
    assert environment.name == f"virtualenv-py{python}-numpy2.3.5-torch2.13.0"
    ran = []
    monkeypatch.setattr(environment, "run_executable", lambda *words, **options: ran.append((words, options)))
    environment._install_requirements()
    ((program, (script, *named)), options), (imported, beside) = ran
    assert (program, script, options["cwd"]) == ("python", str(ROOT / "tools" / "install.py"), ROOT)
    assert (imported, beside) == (("python", ["-c", "import torch._inductor.compile_fx"]), {"return_popen": True})
    assert {"torch==2.13.0", "numpy==2.3.5", "wheel", "asv_runner", "setuptools>=77"} <= set(named)
