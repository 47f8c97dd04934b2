"""What a run leaves behind: a line for each step, samples, checkpoints; and where it goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from board import Write
from fanfold.dataproto import DataProto
from rich.console import Console


class ResumeError(ValueError):
    """A folder that a run cannot go on from."""


class Journal:
    """The folder of a run.

    Args:
        folder: Where everything goes; made if it is not there.
        settings: What the run is a function of; a run goes on only with the same.
        samples_every: Steps between samples that are written.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], samples_every: int = 10) -> None:
        self.folder = folder.absolute()
        self.settings = settings
        self.samples_every = samples_every
        self.rewards: list[float] = []
        self.boards: list[Write] = []
        self._console = Console(stderr=True, highlight=False)
        self.folder.mkdir(parents=True, exist_ok=True)

    def refuse_another_run(self) -> None:
        """Refuse a folder that has a run already.

        Raises:
            ResumeError: It has one.
        """
        if (self.folder / "metrics.jsonl").exists():
            raise ResumeError(f"{self.folder} has a run already; --resume goes on with it, or write to another --out")

    def warmed_up(self, step: int, steps: int) -> None:
        """Say how far the warm-up is."""
        if step == steps or step % 10 == 0:
            self._console.print(f"[dim]warm-up {step}/{steps}[/dim]")

    def stepped(self, step: int, batch: DataProto, metrics: dict[str, Any]) -> None:
        """Write a step's metrics, some of its samples, and one line for people."""
        self.rewards.append(metrics["reward"])
        self._append("metrics.jsonl", {"step": step, **metrics})
        for write in self.boards:
            write(step, metrics)
        if step % self.samples_every == 0:
            for row in range(min(4, len(batch))):
                self._append("samples.jsonl", {"step": step, **sample_of(batch, row)})
        seconds = "  ".join(f"{phase} {value:.2f}" for phase, value in metrics["seconds"].items())
        self._console.print(
            f"step {step:3d}  [bold]reward {metrics['reward']:.3f}[/bold]  KL {metrics['kl']:.4f}  "
            f"entropy {metrics['entropy']:.3f}  {metrics['tokens_per_second']:,.0f} tokens/s  "
            f"[dim]seconds: {seconds}  skew {metrics['skew']:.3f}[/dim]"
        )

    def checkpoint(self, models: Any, steps: int) -> None:
        """Keep the models after some steps; what is in `state.json` is whole, whatever ends the run meanwhile."""
        learners = {"actor": models.actor} | ({"critic": models.critic} if models.critic else {})
        for role, model in learners.items():
            model.save_checkpoint(str(self.folder / role), keep=2)
        state = {"steps": steps, "settings": self.settings}
        state["checkpoints"] = {role: model.steps_done() for role, model in learners.items()}
        draft = self.folder / "state.json.new"
        draft.write_text(json.dumps(state, indent=1), encoding="utf-8")
        draft.replace(self.folder / "state.json")

    def resume(self, models: Any) -> int:
        """Bring the models back to the last checkpoint and forget the steps after it.

        Returns:
            How many steps were done.

        Raises:
            ResumeError: Other settings than those of the run.
        """
        path = self.folder / "state.json"
        if not path.is_file():
            return 0  # it ended before the first checkpoint: everything is done again
        state = json.loads(path.read_text(encoding="utf-8"))
        differ = [name for name, value in self.settings.items() if state["settings"].get(name) != value]
        if differ:
            told = ", ".join(f"{name}={state['settings'].get(name)!r}" for name in differ)
            raise ResumeError(f"{path} is of a run with {told}; go on with the same, or write to another --out")
        for role, step in state["checkpoints"].items():
            getattr(models, role).load_checkpoint(str(self.folder / role), step=step)
        return int(state["steps"])

    def forget_after(self, steps: int) -> None:
        """Leave out of the files what a run that goes on after some steps does again."""
        for name in ("metrics.jsonl", "samples.jsonl"):
            path = self.folder / name
            lines = read_lines(path) if path.is_file() else []
            kept = [line for line in lines if line["step"] < steps]
            path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        self.rewards = [line["reward"] for line in read_lines(self.folder / "metrics.jsonl")]

    def _append(self, name: str, entry: dict[str, Any]) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(entry) + "\n")
            lines.flush()
            os.fsync(lines.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; a last line that was cut off is left out."""
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def sample_of(batch: DataProto, row: int) -> dict[str, Any]:
    """Return one answer as a person looks at it: text, reward, and what each byte cost."""
    mask = batch["loss_mask"][row].bool()
    columns = ("old_log_probs", "ref_log_probs", "advantages")
    return {
        "sample": int(batch["seeds"][row]),
        "prompt": batch["prompt"][row],
        "response": batch["response"][row],
        "answer": batch["answer"][row],
        "reward": float(batch["reward"][row]),
        **{name: [round(float(value), 4) for value in batch[name][row][mask]] for name in columns},
    }
