"""The command line of server.py and client.py: one set of options, so that run.sh can pass the same to both.

Imports nothing heavy: wrong options are refused at once, before anything is started.
"""

from __future__ import annotations

import argparse
import signal
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

DESCRIPTION = "Train a small Megatron model through detached workers: server.py makes them and exits, client.py trains."


def parser() -> argparse.ArgumentParser:
    """Return the parser of all options."""
    options = argparse.ArgumentParser(description=DESCRIPTION)
    _add_cluster_options(options.add_argument_group("cluster and group"))
    _add_layout_options(options.add_argument_group("layout and model (they count when server.py makes the group)"))
    _add_training_options(options.add_argument_group("training (client.py)"))
    return options


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check a command line; a wrong one ends the process with status 2 and says what is wrong."""
    options = parser()
    chosen = options.parse_args(arguments)
    try:
        _check_text(chosen)
    except ValueError as error:
        options.error(str(error))
    return chosen


def report(main: Callable[[], None], *, debug: bool, expected: tuple[type[Exception], ...]) -> int:
    """Run a script's main part; what is expected to go wrong becomes a few lines and status 1, not a stack trace."""
    try:
        main()
    except expected as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # all is done: nothing is left to be put in order
    return 0


def interrupt_on_termination() -> None:
    """Let a termination signal end this process as Ctrl-C does; Ray's own handler would leave a stack trace."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def text_files(text: Path | None) -> list[Path]:
    """Return what is read for training: the given file, or the Python standard library's own source."""
    return [text] if text else sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def _add_cluster_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--name", default="trainer", help="name of the group (default: %(default)s)")
    group.add_argument(
        "--address", default="auto", help="auto, or host:port of a running cluster (default: %(default)s)"
    )
    group.add_argument("--namespace", default="fanfold", help="where the group is named (default: %(default)s)")
    group.add_argument("--replace", action="store_true", help="server.py: end a group of that name first")
    group.add_argument("--stop", action="store_true", help="server.py: end the group of that name, and do nothing else")
    group.add_argument(
        "--cpus-per-process",
        type=positive_number,
        help="CPUs a rank reserves (default: 1, or less where the cluster has fewer)",
    )
    group.add_argument("--debug", action="store_true", help="show stack traces")


def _add_layout_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--tp", type=whole_number, default=2, help="tensor-parallel size (default: %(default)s)")
    group.add_argument("--pp", type=whole_number, default=1, help="pipeline-parallel size (default: %(default)s)")
    group.add_argument("--dp", type=whole_number, default=1, help="data-parallel size (default: %(default)s)")
    group.add_argument("--preset", choices=["tiny", "llama-1b"], default="tiny", help="model (default: %(default)s)")
    group.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="(default: %(default)s)")
    group.add_argument("--learning-rate", type=positive_number, default=1e-3, help="of Adam (default: %(default)s)")
    group.add_argument("--seed", type=int, default=0, help="of weights and batches (default: %(default)s)")


def _add_training_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--steps", type=whole_number, default=60, help="(default: %(default)s)")
    group.add_argument("--batch-size", type=whole_number, default=16, help="rows of a batch (default: %(default)s)")
    group.add_argument("--seq-length", type=sequence_length, default=128, help="tokens of a row (default: %(default)s)")
    group.add_argument("--text", type=Path, help="file to train on (default: the Python standard library's source)")
    group.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")


def _check_text(chosen: argparse.Namespace) -> None:
    if chosen.text and not chosen.text.is_file():
        raise ValueError(f"--text: there is no file {chosen.text}")
    needed = chosen.batch_size * chosen.seq_length
    there = sum(path.stat().st_size for path in text_files(chosen.text))
    if there < needed:
        raise ValueError(
            f"the text has {there} bytes, and one batch of --batch-size {chosen.batch_size} x --seq-length "
            f"{chosen.seq_length} needs {needed}; take a longer --text or a smaller batch"
        )


def whole_number(text: str) -> int:
    """Read a number of 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text}")
    return number


def sequence_length(text: str) -> int:
    """Read a number of 2 or more."""
    number = int(text)
    if number < 2:
        raise argparse.ArgumentTypeError(f"must be 2 or more, because the next token is learnt, got {text}")
    return number


def positive_number(text: str) -> float:
    """Read a number above 0."""
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be more than 0, got {text}")
    return number


if __name__ == "__main__":
    parse()
