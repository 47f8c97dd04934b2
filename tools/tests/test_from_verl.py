import ast
import importlib
import inspect
import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from fanfold.ray import RayResourcePool, RayWorkerGroup
from fanfold.worker import ResourcePool, UnknownOptionError, Worker

from tools import verl_habits
from tools.from_verl import main, module_name, rewrite
from tools.uv import uv_executable
from tools.verl_names import MODULES, NO_PLACE, STAY, WHOLE_MODULES
from tools.workspace import ROOT

TOOL = ROOT / "tools" / "from_verl.py"
TRIAL = Path(__file__).parent / "verl_trial.py"
VERSION = "0.9.1"


def changed(program: str, **where: Any) -> str:
    return rewrite(textwrap.dedent(program), **where).new


def found(program: str) -> list[tuple[int, str, str]]:
    return [(each.line, each.kind, each.what) for each in rewrite(textwrap.dedent(program)).findings]


# Where names are.


@pytest.mark.parametrize(("module", "names"), MODULES.items())
def test_every_name_is_where_the_table_says(module: str, names: dict[str, str]) -> None:
    absent = [name for name, home in names.items() if not hasattr(importlib.import_module(home), name)]

    assert not absent, f"{module}: {absent}"


def test_whole_modules_have_one_home_for_all_their_names() -> None:
    for module, home in WHOLE_MODULES.items():
        assert set(MODULES[module].values()) == {home}


# Imports.


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from verl import DataProto", "from fanfold.dataproto import DataProto"),
        ("from verl.protocol import DataProto as D", "from fanfold.dataproto import DataProto as D"),
        ("from verl.single_controller.base import Worker", "from fanfold.worker import Worker"),
        ("from verl.utils import tensordict_utils as tu", "from fanfold.dataproto import tensordicts as tu"),
        ("from verl.utils import tensordict_utils", "from fanfold.dataproto import tensordicts as tensordict_utils"),
        ("from verl import protocol", "from fanfold import dataproto as protocol"),
        ("import verl.utils.tensordict_utils as tu", "import fanfold.dataproto.tensordicts as tu"),
        ("import os, verl.protocol as p", "import os\nimport fanfold.dataproto as p"),
        ("if 1: from verl import DataProto; x = 1", "if 1: from fanfold.dataproto import DataProto; x = 1"),
        (
            "from verl.utils.ray_utils import auto_await, parallel_put",
            "from fanfold.ray import parallel_put\nfrom verl.utils.ray_utils import auto_await",
        ),
        ("from verl.workers.config import ActorConfig", "from verl.workers.config import ActorConfig"),
        ("import verl", "import verl"),
    ],
)
def test_one_import(before: str, after: str) -> None:
    assert changed(before) == after


def test_names_of_one_import_go_to_their_homes_and_comments_stay() -> None:
    before = """\
    def late():
        from verl.single_controller.ray.base import (  # why here
            RayWorkerGroup,
            Worker,  # the base
            func_generator,
        )  # after

        return "ä", RayWorkerGroup
    """
    after = """\
    def late():
        # why here
        # the base
        from fanfold.ray import RayWorkerGroup
        from fanfold.worker import Worker
        from verl.single_controller.ray.base import func_generator  # after

        return "ä", RayWorkerGroup
    """

    assert changed(before) == textwrap.dedent(after)


def test_columns_are_counted_in_characters_and_line_ends_stay() -> None:
    assert rewrite("x = 'ä€'; from verl import DataProto\r\ny = 1\r\n").new == (
        "x = 'ä€'; from fanfold.dataproto import DataProto\r\ny = 1\r\n"
    )


def test_a_long_import_is_folded() -> None:
    names = ", ".join(sorted(name for name in MODULES["verl.protocol"] if "serialize" in name))
    before = f"if True:\n    from verl.protocol import {names}, DataProtoFuture\n"

    after = changed(before)

    assert max(map(len, after.splitlines())) <= 120
    assert "    from fanfold.dataproto import (\n        DataProtoFuture,\n" in after
    assert "\n    )\n" in after
    ast.parse(after)


def test_relative_imports_are_understood_inside_of_verl() -> None:
    assert changed("from .protocol import DataProto", module="verl", is_package=True) == (
        "from fanfold.dataproto import DataProto"
    )
    assert changed("from ..base import Worker", module="verl.single_controller.ray.x") == (
        "from fanfold.worker import Worker"
    )
    assert changed("from .protocol import DataProto", module="mine.x") == "from .protocol import DataProto"
    assert changed("from ....protocol import DataProto", module="a.b") == "from ....protocol import DataProto"


def test_what_cannot_be_rewritten_is_told() -> None:
    assert found("from verl.protocol import *") == [(1, "by hand", "from verl.protocol import *")]
    assert found("import verl.single_controller.ray") == [(1, "by hand", "import verl.single_controller.ray")]
    assert found("from verl.protocol import BatchData") == [(1, "by hand", "from verl.protocol import BatchData")]
    assert found("from verl.single_controller import ray") == [(1, "by hand", "from verl.single_controller import ray")]
    assert found("from verl import DataProto, __version__\nfrom verl.utils.ray_utils import auto_await") == []


# What needs a look.


def test_refused_options_are_refused() -> None:
    for option in verl_habits.GROUP_OPTIONS:
        with pytest.raises(UnknownOptionError, match=option):
            RayWorkerGroup([1], Worker, **{option: 1})  # type: ignore[arg-type]
        assert found(f"options['{option}'] = 3") == [(1, "refused", f"['{option}'] =")]
        assert found(f"options = {{'{option}': 3}}") == [(1, "refused", f"'{option}':")]
        assert found(f"dict({option}=3)") == [(1, "refused", f"dict({option}=)")]
        assert found(f"RayWorkerGroup(pool, {option}=3)") == [(1, "refused", f"RayWorkerGroup({option}=)")]
    with pytest.raises(UnknownOptionError):
        ResourcePool([1], n_gpus_per_node=8)  # type: ignore[call-arg]
    assert "cuda_visible_devices" not in inspect.signature(Worker).parameters
    assert "device_name" not in inspect.signature(RayResourcePool.get_placement_groups).parameters
    assert found("super().__init__(cuda_visible_devices=x)") == [(1, "refused", "__init__(cuda_visible_devices=)")]


def test_refused_attributes_are_not_there() -> None:
    for name, advice in verl_habits.ATTRIBUTES.items():
        assert hasattr(RayWorkerGroup, name) is (advice.kind != verl_habits.REFUSED), name
        assert not hasattr(Worker, name), name
        assert found(f"group.{name}(1)") == [(1, advice.kind, f".{name}")]


def test_names_that_a_group_keeps_for_itself() -> None:
    assert {name for name in verl_habits.GROUP_NAMES if not hasattr(RayWorkerGroup, name)} == set()
    program = """\
    class Mine(Worker):
        @register(Dispatch.ONE_TO_ALL)
        def close(self): ...

        @decorator.register()
        async def train(self): ...

        @register()
        @staticmethod
        def helper(): ...

        def slice(self): ...
    """

    assert found(program) == [(3, "refused", "def close"), (10, "refused", "@staticmethod def helper")]


def test_what_behaves_otherwise() -> None:
    assert found("group.execute_all('f', [1, 2])\ngroup.execute_all('f')") == [(1, "differs", ".execute_all(...)")]
    assert found("ResourcePoolManager(spec, mapping, 3)") == [(1, "differs", "ResourcePoolManager(_, _, _)")]
    assert found("DataProtoFuture(collect_fn=f, futures=g)") == [(1, "by hand", "DataProtoFuture(...)")]
    assert found("try: f()\nexcept AssertionError: pass") == [(2, "differs", "except AssertionError")]
    assert found("with pytest.raises(AssertionError): f()") == [(1, "differs", "raises(AssertionError)")]
    assert found("os.environ['VERL_AUTO_PADDING'] = '1'") == [(1, "differs", "'VERL_AUTO_PADDING'")]


# The command.


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "mine" / "driver.py"
    path.parent.mkdir()
    path.write_bytes(b"# -*- coding: latin-1 -*-\r\nfrom verl import DataProto  # \xe4\r\ngroup._dispatch_info\r\n")
    return path


def test_nothing_is_written_unless_asked(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = program.read_bytes()

    assert main([str(program.parent)]) == 0

    out = capsys.readouterr().out
    assert program.read_bytes() == before
    assert "-from verl import DataProto" in out
    assert "+from fanfold.dataproto import DataProto" in out
    assert f"{program}:3  refused  ._dispatch_info  ask group.mesh(name).size()" in out
    assert out.splitlines()[-1] == (
        "1 files read, 1 imports in 1 of them would change, 1 places to look at. Nothing was written; --write does it."
    )


def test_writing_keeps_the_encoding_and_the_second_time_changes_nothing(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(program), "--write"]) == 0
    after = program.read_bytes()
    assert main([str(program), "--write"]) == 0

    assert after == program.read_bytes()
    assert b"from fanfold.dataproto import DataProto  # \xe4\r\n" in after
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "1 files read, 0 imports in 0 of them rewritten, 1 places to look at."
    )


def test_other_links_to_a_file_keep_what_they_have(program: Path, tmp_path: Path) -> None:
    cached = tmp_path / "cached.py"
    cached.hardlink_to(program)
    before = cached.read_bytes()
    program.chmod(0o750)

    assert main([str(program), "--write"]) == 0

    assert cached.read_bytes() == before != program.read_bytes()
    assert program.stat().st_mode & 0o777 == 0o750
    assert [path.name for path in program.parent.iterdir()] == [program.name]


def test_other_files_and_tools_folders_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (".venv/x.py", "__pycache__/x.py", "notes.md", "verl/protocol.py", "verl/single_controller/base/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("from verl import DataProto\n", encoding="utf-8")
    for folder in ("verl", "verl/single_controller", "verl/single_controller/base"):
        (tmp_path / folder / "__init__.py").touch()

    assert main([str(tmp_path), "--write"]) == 0

    assert module_name(tmp_path / "verl/single_controller/base/x.py") == "verl.single_controller.base.x"
    assert capsys.readouterr().out == "1 files read, 0 imports in 0 of them rewritten, 0 places to look at.\n"


def test_what_is_no_program_is_told_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "old.py"
    broken.write_text("print 'from verl import DataProto'\n", encoding="utf-8")

    assert main([str(broken), "--write"]) == 1
    assert "old.py: left alone" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "nowhere")])


def test_it_starts_as_a_script_from_anywhere(program: Path) -> None:
    command = [sys.executable, str(TOOL), program.name]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stderr
    assert "1 imports in 1 of them would change" in done.stdout


# On verl itself.


@pytest.fixture(scope="module")
def verl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with verl as released; says aloud why it is not there."""
    folder = tmp_path_factory.mktemp("verl")
    # Not out of uv's cache: whoever wrote into a folder that uv linked to it has changed the files there as well.
    command = [uv_executable(), "pip", "install", "-q", "--no-deps", "--no-cache", "--python", sys.executable]
    done = subprocess.run(
        [*command, "--target", str(folder), f"verl=={VERSION}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        reason = f"verl {VERSION} cannot be fetched, so nothing was tried on it: {done.stderr.strip()}"
        print(f"\nSKIPPED: {reason}", file=sys.__stderr__)
        pytest.skip(reason)
    return folder


def without_imports(text: str) -> str:
    class Drop(ast.NodeTransformer):
        def visit_Import(self, node: ast.Import) -> None: ...
        def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...

    return ast.dump(Drop().visit(ast.parse(text)))


@pytest.mark.installs
def test_every_public_name_of_verl_is_in_a_table(verl: Path) -> None:
    told = {*STAY, *(f"{module}.{name}" for module, names in MODULES.items() for name in (*names, *NO_PLACE))}
    unknown = []
    for module in MODULES:
        path = verl.joinpath(*module.split("."))
        source = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        for node in ast.parse(source.read_text(encoding="utf-8")).body:
            name = getattr(node, "name", "_")
            if not name.startswith(("_", "init_predefined")) and f"{module}.{name}" not in told:
                unknown.append(f"{module}.{name}")

    assert unknown == []


@pytest.mark.installs
def test_only_imports_of_verl_change_and_only_once(verl: Path) -> None:
    statements = 0
    for path in sorted((verl / "verl").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        module, is_package = module_name(path), path.stem == "__init__"
        done = rewrite(text, module, is_package=is_package)
        statements += done.statements
        assert rewrite(done.new, module, is_package=is_package).new == done.new, path
        if done.new != text:
            assert without_imports(done.new) == without_imports(text), path

    assert statements > 80


@pytest.mark.installs
@pytest.mark.timeout(600)
def test_workers_of_verl_bind_and_run_and_its_group_set_up_makes_groups(verl: Path, tmp_path: Path) -> None:
    shutil.copytree(verl / "verl", tmp_path / "verl")
    command = [sys.executable, str(TOOL), str(tmp_path), "--write"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    refused = [line.split(":")[0] for line in done.stdout.splitlines() if "  refused  " in line]
    assert refused.count(str(tmp_path / "verl" / "trainer" / "ppo" / "ray_trainer.py")) == 5

    command = [sys.executable, str(TRIAL), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])

    assert seen["verl_left"] == []  # nothing of verl's own worker groups was imported
    own = {cls: {name: told[:2] for name, told in bound.items()} for cls, bound in seen["bound"].items()}
    for bound in own.values():
        for name in (
            "query_dispatch_info",
            "query_collect_info",
            "execute_with_func_generator",
            "execute_func_rank_zero",
        ):
            del bound[name]  # every worker of fanfold has these
    profile = {name: ["ONE_TO_ALL", True] for name in ("start_profile", "stop_profile", "step_profile")}
    files = {name: ["ONE_TO_ALL", True] for name in ("load_checkpoint", "save_checkpoint", "set_loss_fn", "to")}
    assert own == {
        "TrainingWorker": {
            **(profile | files),
            "reset": ["ONE_TO_ALL", True],
            "train_mini_batch": ["mesh train", False],
            "train_batch": ["mesh train", False],
            "infer_batch": ["mesh train", False],
        },
        "ActorRolloutRefWorker": {
            **(profile | files),
            "init_model": ["ONE_TO_ALL", True],
            "compute_ref_log_prob": ["mesh ref", True],
            "compute_log_prob": ["mesh actor", True],
            "update_actor": ["mesh actor", True],
            "update_weights": ["ONE_TO_ALL", False],
            "execute_checkpoint_engine": ["DP_COMPUTE", False],
        },
        "CheckpointEngineWorker": {
            "update_weights": ["ONE_TO_ALL", False],
            "execute_checkpoint_engine": ["DP_COMPUTE", False],
            "get_replica_rank": ["ONE_TO_ALL", True],
            "is_leader_rank": ["ONE_TO_ALL", True],
        },
    }
    assert seen["calls"] == {
        "update_actor": [[0, 10, 20, 30, 40], [0, 0, 0, 2, 2]],  # five rows on two places of four ranks, in order
        "dp_size": [2, 2],
        "_query_dispatch_info": True,
        "prepare": [{"rank": 0, "items": ["a"], "size": 7}, {"rank": 1, "items": ["b"], "size": 8}],
        "update_weights": [None, None],
        "asked": [["weights 3 as named_tensors"]] * 2,
        "is_leader_rank": [True, True],
    }
    assert seen["set_up"] == {
        "actor": [[["config", "distillation_config", "role"], True]] * 2,
        "critic": [[["config"], ["initialize"]]] * 2,
        "loss": ["verl.workers.utils.losses"] * 2,
        "apart": [False, False],
    }
