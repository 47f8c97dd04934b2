"""The command line of both scripts, and what a script does around the loop: the same for the toy and for groups."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from board import BoardError, require_tensorboard, tensorboard
from fanfold.dataproto import FanfoldError as DataError
from fanfold.dispatch import FanfoldError
from journal import Journal, ResumeError
from loop import SIZES, Models, Settings, train
from problems import ADDITIONS, TaskFileError, read_problems
from workers import RewardError, is_right

EXPECTED = (FanfoldError, DataError, TaskFileError, ResumeError, RewardError, BoardError)


@dataclass(frozen=True)
class Arguments:
    """What a run was asked for.

    Attributes:
        settings: What the result depends on.
        tasks: The file of problems.
        out: The folder of the run.
        resume: Whether to go on from the last checkpoint there.
        tensorboard: Whether the metrics are written for TensorBoard too, into `out`/tensorboard.
        device: `auto`, `cpu` or `cuda`.
        backend: What runs the ranks.
        placement: `colocated`: all models in the same processes; `split`: each in processes of its own.
        tp: Tensor-parallel size of each model.
        dp: Data-parallel size of each model.
        judges: Processes that judge answers.
        attach: Name under which models stay loaded when the driver ends.
        stop: Whether to end the models of that name, and do nothing else.
        address: Of a Ray cluster.
        debug: Whether to show stack traces.
        reward: What an answer earns; no option, for programs that import this.
    """

    settings: Settings
    tasks: Path = ADDITIONS
    out: Path = Path("grpo-run")
    resume: bool = False
    tensorboard: bool = False
    device: str = "auto"
    backend: str = "inline"
    placement: str = "colocated"
    tp: int = 1
    dp: int = 1
    judges: int = 1
    attach: str | None = None
    stop: bool = False
    address: str = "auto"
    debug: bool = False
    reward: Callable[[str, str], float] = is_right

    def recipe(self, role: str) -> dict[str, Any]:
        """Return what the worker of a model is given."""
        size = replace(SIZES, head="value") if role == "critic" else SIZES
        settings = self.settings
        return {"model": size, "optimizer": settings.optimizer, "seed": settings.seed, "device": self.device}


def parse(description: str | None, *, groups: bool = False, arguments: list[str] | None = None) -> Arguments:
    """Parse a command line; a wrong one ends the process with status 2 and says what is wrong."""
    options = argparse.ArgumentParser(description=description)
    run = options.add_argument_group("run")
    run.add_argument("--tasks", type=Path, default=ADDITIONS, help="JSON lines of problems (default: additions)")
    run.add_argument("--out", type=Path, default=Path("grpo-run"), help="folder of the run (default: %(default)s)")
    run.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    run.add_argument("--tensorboard", action="store_true", help="write the metrics for TensorBoard too")
    run.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="(default: %(default)s)")
    run.add_argument("--debug", action="store_true", help="show stack traces")
    _add_settings(options.add_argument_group("what is learnt"))
    if groups:
        _add_groups(options.add_argument_group("where"))
    chosen = vars(options.parse_args(arguments))
    settings = Settings(**{entry.name: chosen.pop(entry.name) for entry in fields(Settings)})
    made = Arguments(settings, **chosen)
    if made.backend == "inline" and made.tp * made.dp > 1:
        options.error("--backend inline has one rank: leave --tp and --dp at 1, or take processes or ray")
    if made.stop and not made.attach:
        options.error("--stop ends the models of a name; say --attach NAME too")
    if made.attach and made.backend != "ray":
        options.error(f"--attach needs --backend ray: processes of {made.backend} end with the driver")
    return made


def _add_settings(group: argparse._ArgumentGroup) -> None:
    for entry in fields(Settings):
        choices = ["grpo", "ppo"] if entry.name == "algorithm" else None
        kind = type(entry.default)
        name = "--" + entry.name.replace("_", "-")
        group.add_argument(name, type=kind, choices=choices, default=entry.default, help="(default: %(default)s)")


def _add_groups(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--backend",
        choices=["inline", "processes", "ray"],
        default="processes",
        help="what runs the ranks (default: %(default)s)",
    )
    group.add_argument(
        "--placement", choices=["colocated", "split"], default="colocated", help="(default: %(default)s)"
    )
    group.add_argument("--tp", type=int, default=1, help="tensor-parallel size of each model")
    group.add_argument("--dp", type=int, default=1, help="data-parallel size of each model")
    group.add_argument("--judges", type=int, default=1, help="processes that judge answers")
    group.add_argument("--attach", metavar="NAME", help="find the models of that name, or load them; they stay loaded")
    group.add_argument("--stop", action="store_true", help="end the models of --attach NAME, and do nothing else")
    group.add_argument("--address", default="auto", help="auto, or host:port of a running Ray cluster")


def report(make_models: Callable[[Arguments], AbstractContextManager[Models]], chosen: Arguments) -> int:
    """Run a script's main part; returns the status of the process."""
    advice = f"--resume goes on from the last checkpoint in {chosen.out}"
    return attempt(lambda: print(json.dumps(run(make_models, chosen))), chosen, advice)


def attempt(action: Callable[[], object], chosen: Arguments, advice: str = "") -> int:
    """Do something; what is expected to go wrong becomes a few lines and status 1, not a stack trace."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        action()
    except EXPECTED as error:
        if chosen.debug:
            raise
        print("\n".join(filter(None, [f"error: {error}", advice])), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("; ".join(filter(None, ["interrupted", advice])), file=sys.stderr)
        return 130
    return 0


def run(make_models: Callable[[Arguments], AbstractContextManager[Models]], chosen: Arguments) -> dict[str, Any]:
    """Make the models, bring them to where the run is, and run the loop.

    Returns:
        What came out: rewards of the first step and mean of the last five, and seconds.
    """
    began, settings = time.perf_counter(), chosen.settings
    if chosen.tensorboard:
        require_tensorboard()
    problems = read_problems(chosen.tasks, SIZES.max_sequence_length - settings.max_new_tokens)
    kept = {name: value for name, value in asdict(settings).items() if name != "steps"}
    journal = Journal(chosen.out, kept, settings.samples_every)
    if not (chosen.resume or chosen.attach):
        journal.refuse_another_run()
    with ExitStack() as ends:
        models = ends.enter_context(make_models(chosen))
        done = models.start(settings, journal, resume=chosen.resume)
        journal.forget_after(done)
        if chosen.tensorboard:
            journal.boards.append(ends.enter_context(tensorboard(chosen.out / "tensorboard", done)))
        ready = time.perf_counter()
        train(models, problems, settings, journal)
        models.enter("learning")
    last = journal.rewards[-5:]
    seconds = {"start": round(ready - began, 2), "run": round(time.perf_counter() - ready, 2)}
    rewards = {"first_reward": journal.rewards[0], "last_reward": sum(last) / len(last)}
    return {"steps": len(journal.rewards), **rewards, "first_step": done, "seconds": seconds}
