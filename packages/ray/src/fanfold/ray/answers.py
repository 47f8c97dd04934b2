"""What a rank says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.ray.sidedoor import Doorbell
    from fanfold.worker import RankInfo

    from ray.util.placement_group import PlacementGroup


@dataclass(frozen=True)
class RankAnswer:
    """Where a rank runs and how it is reached.

    Attributes:
        name: Name of its actor.
        pid: Its process.
        node_id: Ray's id of its node.
        address: Address of its node.
        gpu_ids: The GPUs that Ray gave it, as Ray numbers them on the node.
        info: Who it is; None until it has been told.
        placement_group: Where it sits.
        bell: How it can be asked while it works; None until it has been told who it is.
        logs: The files that its output goes to.
        oom_kills: How many processes the kernel had killed for memory on its node by then; -1 if it does not say.
        generation: How often it had been started anew.
    """

    name: str
    pid: int
    node_id: str
    address: str
    gpu_ids: Sequence[str]
    info: RankInfo | None
    placement_group: PlacementGroup | None = field(repr=False)
    bell: Doorbell | None = field(repr=False)
    logs: Sequence[str] = field(default=(), repr=False)
    oom_kills: int = -1
    generation: int = 0


def devices_of(peers: Sequence[RankAnswer]) -> dict[str, str]:
    """Return the variable with which all ranks of a node see each other's devices, each its own at its local rank.

    Ranks that share a device, or have none, go on seeing what Ray shows them: no number could be each one's own.

    Args:
        peers: The group's ranks on this node, in the order of local ranks.
    """
    devices = [device for peer in peers for device in peer.gpu_ids]
    own = all(len(peer.gpu_ids) == 1 for peer in peers) and len(set(devices)) == len(devices)
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if own else {}
