"""Who a rank is, and the one place that reads and writes `os.environ`.

The contract is what `torch.distributed.init_process_group("env://")` and launchers of its kind read:
`WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT`, with `WG_PREFIX` and `WG_BACKEND` for
the group's name and backend, and `RAY_LOCAL_WORLD_SIZE` for code that comes from verl.
"""

from __future__ import annotations

import os
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fanfold.worker.devices import apply, devices_in, settled
from fanfold.worker.errors import RankEnvironmentError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from fanfold.worker.pool import Slot


@dataclass(frozen=True)
class RankInfo:
    """What one rank knows about itself and its group.

    Attributes:
        rank: Number in the group, from 0.
        world_size: Ranks in the group.
        local_rank: Number among the group's ranks on this node.
        local_world_size: The group's ranks on this node.
        node_rank: Number of this node in the group.
        master_addr: Address of rank 0's node, without brackets.
        master_port: A port on that node for the rendezvous.
        group: Name of the group.
        backend: Name of the backend that runs it.
        visible_devices: The accelerators this rank may see; None where its environment does not say.
    """

    rank: int
    world_size: int
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    group: str = ""
    backend: str = ""
    visible_devices: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise RankEnvironmentError(
                f"rank {self.rank} is not one of the {self.world_size} ranks of a group, 0 to {self.world_size - 1}"
            )

    @property
    def coordinates(self) -> dict[str, int]:
        """Where this rank sits: its node, and its number there."""
        return {"node": self.node_rank, "local": self.local_rank}

    def environment(self) -> dict[str, str]:
        """Return the variables that say all this to libraries."""
        return {
            "WORLD_SIZE": str(self.world_size),
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "RAY_LOCAL_WORLD_SIZE": str(self.local_world_size),
            "NODE_RANK": str(self.node_rank),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            "WG_PREFIX": self.group,
            "WG_BACKEND": self.backend,
        }

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> RankInfo:
        """Read the variables; those that launchers leave out have the defaults of a single node.

        Raises:
            RankEnvironmentError: A needed variable is absent, is no number where one is needed, or RANK is beyond
                WORLD_SIZE.
        """
        variables = os.environ if environ is None else environ
        return cls(
            rank=_number(variables, "RANK"),
            world_size=_number(variables, "WORLD_SIZE"),
            local_rank=_number(variables, "LOCAL_RANK", "0"),
            local_world_size=_number(variables, "LOCAL_WORLD_SIZE", "1"),
            node_rank=_number(variables, "NODE_RANK", "0"),
            master_addr=_text(variables, "MASTER_ADDR").strip("[]"),
            master_port=_number(variables, "MASTER_PORT"),
            group=variables.get("WG_PREFIX", ""),
            backend=variables.get("WG_BACKEND", ""),
            visible_devices=devices_in(variables),
        )


CONTRACT = tuple(RankInfo(rank=0, world_size=1).environment())
PROTECTED_VARIABLES = frozenset(CONTRACT)

_rank_of_this_context: ContextVar[RankInfo | None] = ContextVar("fanfold_rank", default=None)


def current_rank() -> RankInfo:
    """Return who this code runs as: the rank of this context, else what the environment says.

    Raises:
        RankEnvironmentError: This code does not run on a rank.
    """
    return _rank_of_this_context.get() or RankInfo.from_environment()


def rank_infos(slots: Sequence[Slot], group: str, backend: str, master: tuple[str, int]) -> tuple[RankInfo, ...]:
    """Say who each rank is, from its slot, the group's name and the rendezvous point."""
    return tuple(
        RankInfo(
            rank=slot.rank,
            world_size=len(slots),
            local_rank=slot.local_rank,
            local_world_size=slot.local_world_size,
            node_rank=slot.node_rank,
            master_addr=master[0],
            master_port=master[1],
            group=group,
            backend=backend,
        )
        for slot in slots
    )


def check_worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of what a user wants in the environment of the workers.

    Raises:
        RankEnvironmentError: A name belongs to the rank contract, or a value is no text.
    """
    if not hasattr(environment, "keys"):
        raise RankEnvironmentError(f"worker_env is a mapping of names to texts; got {environment!r}")
    clash = sorted(PROTECTED_VARIABLES & environment.keys())
    if clash:
        raise RankEnvironmentError(
            f"worker_env sets {', '.join(clash)}, which the group itself sets for each rank; leave them out"
        )
    given: Mapping[str, object] = environment
    wrong = [f"{key}={value!r}" for key, value in given.items() if not isinstance(value, str) or "\0" in value]
    if wrong:
        raise RankEnvironmentError(
            f"worker_env takes text values without a null character, as the environment does; got {', '.join(wrong)}"
        )
    names: list[object] = [*environment]
    wrong = [repr(key) for key in names if not isinstance(key, str) or not key or {"=", "\0"} & set(key)]
    if wrong:
        raise RankEnvironmentError(f"worker_env has names that no variable can have: {', '.join(wrong)}")
    return dict(environment)


def backend_of_environment() -> str:
    """Return the backend that `FANFOLD_BACKEND` names; inline where it names none."""
    return os.environ.get("FANFOLD_BACKEND") or "inline"


def environment_of(info: RankInfo, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a process that is to be that rank: this one's, the user's, the contract."""
    return {**os.environ, **environment, **info.environment()}


def enter_rank(info: RankInfo, environment: Mapping[str, str]) -> None:
    """Make this process that rank for good: for a process that runs nothing else."""
    os.environ.update(environment)
    os.environ.update(info.environment())


def lend(info: RankInfo) -> dict[str, str | None]:
    """Make this process that rank, and return what `give_back` needs to know of how it was."""
    before = {name: os.environ.get(name) for name in CONTRACT}
    os.environ.update(info.environment())
    return before


def give_back(before: Mapping[str, str | None]) -> None:
    """Set variables as they were; None for those that were not there."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def enter_context(info: RankInfo) -> Token[RankInfo | None]:
    """Be that rank for `current_rank()`, until `leave_context`; the environment stays as it is."""
    return _rank_of_this_context.set(info)


def leave_context(before: Token[RankInfo | None]) -> None:
    """Be again who this code was before."""
    _rank_of_this_context.reset(before)


def settle_visible_devices(environ: MutableMapping[str, str] | None = None) -> None:
    """Leave one list of visible devices, in `CUDA_VISIBLE_DEVICES`, where AMD's tools set another variable.

    Raises:
        RankEnvironmentError: Two variables are set and disagree.
    """
    variables = os.environ if environ is None else environ
    apply(settled(variables), variables)


def visible_devices(kind: str = "cuda") -> tuple[str, ...] | None:
    """Return the devices that this process may see; None where the environment does not say."""
    return devices_in(os.environ, kind)


def _text(variables: Mapping[str, str], name: str) -> str:
    if name not in variables:
        raise RankEnvironmentError(
            f"the environment has no {name}: this code does not run on a rank; start it through a group or a launcher, "
            "or say OnlyRank() before it"
        )
    return variables[name]


def _number(variables: Mapping[str, str], name: str, default: str | None = None) -> int:
    text = variables.get(name, default) if default is not None else _text(variables, name)
    if not str(text).lstrip("-").isdigit():
        raise RankEnvironmentError(f"{name} must be a whole number; the environment has {text!r}")
    return int(str(text))
