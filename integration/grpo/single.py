"""The toy: every model is an object of this process; `distributed.py` runs the same loop on ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from arguments import Arguments, parse, report
from fanfold.worker import OnlyRank
from loop import Models
from workers import Critic, Judge, Policy, Reference


@contextmanager
def models_here(chosen: Arguments) -> Iterator[Models]:
    """Make the workers, in this process."""
    with OnlyRank(), ExitStack() as ends:
        actor = ends.enter_context(closing(Policy(**chosen.recipe("actor"))))
        reference = ends.enter_context(closing(Reference(**chosen.recipe("reference"))))
        models = Models(actor, reference, Judge(chosen.reward))
        if chosen.settings.algorithm == "ppo":
            models.critic = ends.enter_context(closing(Critic(**chosen.recipe("critic"))))
        yield models


if __name__ == "__main__":
    sys.exit(report(models_here, parse(__doc__)))
