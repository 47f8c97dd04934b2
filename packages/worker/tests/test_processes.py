from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import on_ranks
import pytest
from fanfold.worker import (
    ClassWithInitArgs,
    GroupCallError,
    NotPicklableError,
    WaitTimeoutError,
    WorkerGroup,
    WorkerLostError,
    WorkerStartError,
)
from fanfold.worker.processes import ProcessesBackend
from fanfold.worker.testing import Probe
from fanfold.worker.testing.workers import Rendezvous

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OWN_MODULE = """
    import os
    SEEN = {name: os.environ.get(name) for name in ("RANK", "MY_SETTING")}

    from fanfold.dispatch import Dispatch, register
    from fanfold.worker import Worker

    class Mine(Worker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def seen(self):
            return SEEN
"""


@pytest.fixture(name="group", scope="module")
def _group() -> Iterator[WorkerGroup[Probe]]:
    with WorkerGroup([2], Probe, backend=ProcessesBackend(), name_prefix="p-") as group:
        yield group


@pytest.fixture(name="meeting")
def _meeting(tmp_path: Path) -> Iterator[tuple[WorkerGroup[Rendezvous], Path]]:
    recipe = ClassWithInitArgs(Rendezvous, str(tmp_path))
    with WorkerGroup([2], recipe, backend=ProcessesBackend(), name_prefix="m-") as group:
        yield group, tmp_path


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return _state(pid) != "Z"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def _run(script: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    code = textwrap.dedent(script)
    return subprocess.run(
        [sys.executable, *arguments, "-c", code], capture_output=True, text=True, timeout=110, check=False, **options
    )


def test_each_rank_has_a_process_of_its_own(group: WorkerGroup[Probe]) -> None:
    pids = group.execute(on_ranks.pid)
    assert len({*pids, os.getpid()}) == 3
    assert [member.pid for member in group._members] == pids


def test_methods_run_on_the_main_thread(group: WorkerGroup[Probe]) -> None:
    assert group.execute(on_ranks.on_main_thread) == [True, True]


def test_module_beside_the_script_sees_its_environment_when_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_module_of_test.py").write_text(textwrap.dedent(OWN_MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    from own_module_of_test import Mine  # type: ignore[import-not-found]  # noqa: PLC0415

    with WorkerGroup([2], Mine, backend="processes", worker_env={"MY_SETTING": "7"}) as group:
        assert group.seen() == [{"RANK": "0", "MY_SETTING": "7"}, {"RANK": "1", "MY_SETTING": "7"}]


def test_what_the_interpreter_reads_is_there_when_it_starts() -> None:
    with WorkerGroup([1], Probe, backend="processes", worker_env={"PYTHONHASHSEED": "0"}) as group:
        assert group.execute(on_ranks.hash_randomization) == [0]


def test_warning_options_are_handed_on() -> None:
    script = """
        import sys
        from fanfold.worker import WorkerGroup
        from fanfold.worker.testing import Probe
        with WorkerGroup([1], Probe, backend="processes") as group:
            print(group.execute(lambda worker: (__import__("sys").warnoptions, __debug__)))
    """
    assert _run(script, "-Wignore::UserWarning", "-O").stdout == "[(['ignore::UserWarning'], False)]\n"


def test_class_of_a_script_works_without_a_main_guard_by_cloudpickle() -> None:
    script = """
        from fanfold.dispatch import Dispatch, register
        from fanfold.worker import Worker, WorkerGroup
        class Mine(Worker):
            @register(dispatch_mode=Dispatch.ONE_TO_ALL)
            def like(self, other):
                return Note(other.text + str(self.rank))
        class Note:
            def __init__(self, text):
                self.text = text
        with WorkerGroup([2], Mine, backend="processes") as group:
            said = group.like(Note("n"))
            print([type(note) is Note for note in said], [note.text for note in said])
    """
    assert _run(script).stdout == "[True, True] ['n0', 'n1']\n"


def test_class_of_a_script_is_refused_without_cloudpickle_and_nothing_is_left() -> None:
    script = """
        import os, sys
        sys.modules["cloudpickle"] = None
        from fanfold.worker import NotPicklableError, Worker, WorkerGroup
        class Mine(Worker): pass
        try:
            WorkerGroup([2], Mine, backend="processes")
        except NotPicklableError as error:
            print(error)
        print("children:", open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split())
    """
    done = _run(script)
    assert "the recipe of Mine cannot travel" in done.stdout
    assert "fanfold-worker[cloudpickle]" in done.stdout
    assert done.stdout.splitlines()[-1] == "children: []"


def test_function_that_cannot_be_imported_there_says_what_is_needed(
    group: WorkerGroup[Probe], monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = types.ModuleType("only_in_this_process")
    exec("def nothing(worker): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_in_this_process", module)
    with pytest.raises(ModuleNotFoundError, match="only_in_this_process") as caught:
        group.execute(module.nothing)
    assert "has to be importable on the rank too" in str(caught.value)


def test_output_appears_with_the_ranks_name(group: WorkerGroup[Probe], capfd: pytest.CaptureFixture[str]) -> None:
    group.execute(on_ranks.say, "one line\nanother")
    said: list[str] = []

    def heard() -> bool:
        said.append(capfd.readouterr().err)
        return sorted("".join(said).splitlines()) == [
            "[p-Probe_0:0] another",
            "[p-Probe_0:0] one line",
            "[p-Probe_0:1] another",
            "[p-Probe_0:1] one line",
        ]

    _until(heard)


def test_rank_that_exits_tells_how(meeting: tuple[WorkerGroup[Rendezvous], Path]) -> None:
    group, folder = meeting
    (folder / "go").touch()
    with pytest.raises(WorkerLostError) as caught:
        group.die(1, "go", "exit")
    error = caught.value
    assert (error.exit_status, error.signal_name) == (7, "")
    assert error.log[-2:] == ("these are", "my last words")
    assert "rank 1 (m-Rendezvous_0:1, pid" in str(error)
    assert "exit status 7; the last of its output:\n  these are\n  my last words" in str(error)


def test_rank_that_is_killed_tells_by_what(meeting: tuple[WorkerGroup[Rendezvous], Path]) -> None:
    group, folder = meeting
    (folder / "go").touch()
    with pytest.raises(
        WorkerLostError, match=r"killed by SIGKILL; if nobody killed it, the system was out of memory"
    ) as caught:
        group.die(0, "go")
    assert caught.value.signal_name == "SIGKILL"
    assert isinstance(caught.value, GroupCallError)


def test_rank_that_crashes_leaves_its_python_stack(group: WorkerGroup[Probe]) -> None:
    with (
        WorkerGroup([1], Probe, backend="processes") as fragile,
        pytest.raises(WorkerLostError, match="SIGSEGV") as caught,
    ):
        fragile.execute(on_ranks.crash)
    assert any("in crash" in line for line in caught.value.log)
    assert group.who() == [(0, 2), (1, 2)]


def test_death_between_calls_is_told_by_the_next(meeting: tuple[WorkerGroup[Rendezvous], Path]) -> None:
    group, folder = meeting
    os.kill(group._members[1].pid, signal.SIGTERM)
    (folder / "go").touch()
    with pytest.raises(WorkerLostError, match="killed by SIGTERM"):
        group.wait_for("go")
    assert list(group._backend.lost(group._members)) == [1]  # type: ignore[attr-defined]


def test_rank_that_dies_at_the_start() -> None:
    with pytest.raises(
        WorkerStartError, match=r"rank 1 \(.*could not build its Dying: .*exit status 3.*\n.*no licence"
    ) as caught:
        WorkerGroup([3], on_ranks.Dying, backend="processes")
    assert isinstance(caught.value.__cause__, WorkerLostError)


def test_rank_that_hangs_at_the_start_is_named_and_ended() -> None:
    with pytest.raises(WaitTimeoutError, match=r"the start of 2 ranks .* still missing: .*rank 1 \(") as caught:
        WorkerGroup([2], on_ranks.Hanging, backend="processes", start_timeout=2)
    (pid,) = re.findall(r"rank 1 \(.*pid (\d+)\)", str(caught.value))
    _until(lambda: not _lives(int(pid)))


def test_stopped_process_is_told_as_silent(meeting: tuple[WorkerGroup[Rendezvous], Path]) -> None:
    group, _ = meeting
    os.kill(group._members[1].pid, signal.SIGSTOP)
    _until(lambda: _state(group._members[1].pid) == "T")

    def only_the_stopped_one_is_silent() -> bool:  # the other one may need longer too, now and then
        _, first, second, *_ = group.why_stuck(limit=0.3).splitlines()
        assert "did not answer within 0.3 s" in second
        return " - " in first

    _until(only_the_stopped_one_is_silent)
    os.kill(group._members[1].pid, signal.SIGCONT)


def test_close_ends_busy_and_stopped_ranks_within_its_limit(tmp_path: Path) -> None:
    recipe = ClassWithInitArgs(Rendezvous, str(tmp_path))
    group = WorkerGroup([3], recipe, backend=ProcessesBackend())
    pids = group.process()
    group.wait_for.options(blocking=False, ranks=[1])("never", patience=3600)
    os.kill(pids[2], signal.SIGSTOP)
    _until(lambda: _state(pids[2]) == "T")
    began = time.monotonic()
    group._ranks.close(limit=4)
    assert time.monotonic() - began < 60
    assert not any(map(_lives, pids))


def test_nothing_is_left_after_close() -> None:
    files = len(list(Path("/proc/self/fd").iterdir()))
    with WorkerGroup([2], Probe, backend=ProcessesBackend(), name_prefix="left-") as group:
        group.echo(bytearray(300_000))
        group.later(1)
        pids = group.execute(on_ranks.pid)
        assert [thread.name for thread in threading.enumerate()].count("fanfold-left-") == 1
    assert "fanfold-left-" not in [thread.name for thread in threading.enumerate()]
    assert not any(map(_lives, pids))
    assert len(list(Path("/proc/self/fd").iterdir())) <= files


def test_ranks_end_when_their_driver_is_killed(tmp_path: Path) -> None:
    script = f"""
        import os, signal, time
        from fanfold.worker import WorkerGroup
        from fanfold.worker.testing import Probe
        group = WorkerGroup([2], Probe, backend="processes")
        open({str(tmp_path / "pids")!r}, "w").write(" ".join(str(member.pid) for member in group._members))
        group.echo.options(blocking=False)(1)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert _run(script).returncode == -signal.SIGKILL
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    _until(lambda: not any(map(_lives, pids)))


def test_forked_copy_of_the_driver_ends_nothing() -> None:
    script = """
        import os
        from fanfold.worker import WorkerGroup
        from fanfold.worker.testing import Probe
        group = WorkerGroup([2], Probe, backend="processes")
        if os.fork() == 0:
            group.close()
            raise SystemExit
        os.wait()
        print(group.who())
    """
    assert _run(script, "-Wignore::DeprecationWarning").stdout == "[(0, 2), (1, 2)]\n"


def test_ctrl_c_of_a_driver_leaves_nothing(tmp_path: Path) -> None:
    script = f"""
        import os, signal, threading
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell has put into the background
        from fanfold.worker import ClassWithInitArgs, WorkerGroup
        from fanfold.worker.testing.workers import Rendezvous
        group = WorkerGroup([2], ClassWithInitArgs(Rendezvous, {str(tmp_path)!r}), backend="processes")
        open({str(tmp_path / "pids")!r}, "w").write(" ".join(map(str, group.process())))
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        group.wait_for("never", patience=3600)
    """
    done = _run(script)
    assert "KeyboardInterrupt" in done.stderr
    assert not any(_lives(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_descriptors_of_large_values_are_given_back(group: WorkerGroup[Probe]) -> None:
    value = bytearray(200_000)
    before = group.execute(on_ranks.open_files)
    for _ in range(20):
        group.echo(value)
    assert group.execute(on_ranks.open_files) == before


def test_many_large_arguments_at_once(group: WorkerGroup[Probe]) -> None:
    values = [bytearray(b"%d" % number) * 100_000 for number in range(8)]
    assert group.execute(on_ranks.lengths, *values) == [[len(value) for value in values]] * 2


def test_argument_that_cannot_be_unpacked_there_is_the_ranks_error(group: WorkerGroup[Probe]) -> None:
    with pytest.raises(ZeroDivisionError):
        group.echo(on_ranks.Explosive())
    assert group.who() == [(0, 2), (1, 2)]


def test_result_that_cannot_be_unpacked_here_is_told() -> None:
    with WorkerGroup([1], Probe, backend="processes") as group:
        with pytest.raises(RuntimeError, match=r"the result of foreign cannot be unpacked here"):
            group.execute(on_ranks.foreign)
        with pytest.raises(NotPicklableError):
            group.execute(on_ranks.unpicklable)
        assert group.who() == [(0, 1)]
