"""Kinds of accelerator: what schedulers call them, which variable hides them, what their ranks talk over. Pure rules.

The switches `RAY_EXPERIMENTAL_NOSET_*` keep Ray from hiding devices from a worker. They count when they say "1" or
"true" in any case, as Ray itself reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fanfold.worker.errors import RankEnvironmentError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence


class DeviceKind(NamedTuple):
    """One kind of device.

    Attributes:
        name: What torch calls it: `torch.device(name)`.
        resource: What schedulers count it as.
        visibility: The variable that lists the devices a process may use; empty where there is none.
        collective_backend: What `init_process_group` takes for it.
        noset: The switch that keeps Ray from setting `visibility`.
    """

    name: str
    resource: str
    visibility: str
    collective_backend: str
    noset: str = ""


KINDS: Mapping[str, DeviceKind] = {
    kind.name: kind
    for kind in (
        DeviceKind("cpu", "CPU", "", "gloo"),
        DeviceKind("cuda", "GPU", "CUDA_VISIBLE_DEVICES", "nccl", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"),
        DeviceKind(
            "npu", "NPU", "ASCEND_RT_VISIBLE_DEVICES", "hccl", "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"
        ),
        DeviceKind("hpu", "HPU", "HABANA_VISIBLE_MODULES", "hccl", "RAY_EXPERIMENTAL_NOSET_HABANA_VISIBLE_MODULES"),
        DeviceKind("xpu", "GPU", "ONEAPI_DEVICE_SELECTOR", "xccl", "RAY_EXPERIMENTAL_NOSET_ONEAPI_DEVICE_SELECTOR"),
    )
}

# AMD's own variables for what torch calls cuda: list by ROCm's runtime, list by HIP.
AMD_VISIBILITY = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
NOSET_SWITCHES = tuple(kind.noset for kind in KINDS.values() if kind.noset) + tuple(
    f"RAY_EXPERIMENTAL_NOSET_{name}"
    for name in (*AMD_VISIBILITY, "ZE_AFFINITY_MASK", "NEURON_RT_VISIBLE_CORES", "TPU_VISIBLE_CHIPS")
)


def device_kind(name: str) -> DeviceKind:
    """Look up a kind of device.

    Raises:
        RankEnvironmentError: There is none of that name.
    """
    if name not in KINDS:
        raise RankEnvironmentError(f"there is no kind of device {name!r}; there are {', '.join(KINDS)}")
    return KINDS[name]


def keeps_all_visible(variables: Mapping[str, str]) -> bool:
    """Say whether a switch keeps Ray from hiding devices, so that a rank sees all of its node."""
    return any(variables.get(switch, "").lower() in ("1", "true") for switch in NOSET_SWITCHES)


def devices_in(variables: Mapping[str, str], kind: str = "cuda") -> tuple[str, ...] | None:
    """Return the devices that an environment lets a process see; None where it does not say, () where it says none."""
    text = variables.get(device_kind(kind).visibility)
    if text is None:
        return None
    return () if text in ("", "NoDevFiles") else tuple(part.strip() for part in text.split(","))


def device_index(visible: Sequence[str] | None, assigned: str) -> int:
    """Return the number by which a process addresses the device that was assigned to it.

    Args:
        visible: The devices the process sees, in its order; None for all of the node.
        assigned: The device as its scheduler calls it.

    Raises:
        RankEnvironmentError: The process cannot see it.
    """
    if visible is None:
        return _number(assigned)
    if assigned not in visible:
        raise RankEnvironmentError(
            f"device {assigned!r} was assigned to this rank, which may only see {', '.join(visible) or 'none'}"
        )
    return list(visible).index(assigned)


def settled(variables: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes that leave one list of devices, in `CUDA_VISIBLE_DEVICES`; None for a variable to remove.

    Raises:
        RankEnvironmentError: Two variables are set and disagree, or cannot both be meant.
    """
    changes: dict[str, str | None] = {}
    for name in AMD_VISIBILITY:
        if variables.get(name):
            changes |= _moved_to_cuda({**variables, **{k: v for k, v in changes.items() if v is not None}}, name)
    return changes


def apply(changes: Mapping[str, str | None], variables: MutableMapping[str, str]) -> None:
    """Make the changes, in place."""
    for name, value in changes.items():
        if value is None:
            del variables[name]
        else:
            variables[name] = value


def _moved_to_cuda(variables: Mapping[str, str], name: str) -> dict[str, str | None]:
    here, there = variables[name], variables.get("CUDA_VISIBLE_DEVICES")
    if there and (there != here or name == "ROCR_VISIBLE_DEVICES"):
        differ = " and differ" if there != here else ""
        raise RankEnvironmentError(
            f"{name}={here!r} and CUDA_VISIBLE_DEVICES={there!r} are both set{differ}; set one of them"
        )
    return {"CUDA_VISIBLE_DEVICES": here, name: None}


def _number(assigned: str) -> int:
    if not assigned.isdigit():
        raise RankEnvironmentError(
            f"device {assigned!r} has no number, and this rank has no list of devices to find it in"
        )
    return int(assigned)
