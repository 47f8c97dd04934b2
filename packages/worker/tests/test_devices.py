from __future__ import annotations

import pytest
from fanfold.worker import RankEnvironmentError, device_index, device_kind, keeps_all_visible
from fanfold.worker.devices import NOSET_SWITCHES, devices_in
from fanfold.worker.rank import settle_visible_devices


@pytest.mark.parametrize(
    ("name", "resource", "visibility", "collectives"),
    [
        ("cpu", "CPU", "", "gloo"),
        ("cuda", "GPU", "CUDA_VISIBLE_DEVICES", "nccl"),
        ("npu", "NPU", "ASCEND_RT_VISIBLE_DEVICES", "hccl"),
        ("hpu", "HPU", "HABANA_VISIBLE_MODULES", "hccl"),
        ("xpu", "GPU", "ONEAPI_DEVICE_SELECTOR", "xccl"),
    ],
)
def test_kinds(name: str, resource: str, visibility: str, collectives: str) -> None:
    kind = device_kind(name)
    assert (kind.name, kind.resource, kind.visibility, kind.collective_backend) == (
        name,
        resource,
        visibility,
        collectives,
    )


def test_unknown_kind() -> None:
    with pytest.raises(RankEnvironmentError, match=r"no kind of device 'gpu'.*cpu, cuda, npu"):
        device_kind("gpu")


@pytest.mark.parametrize("switch", NOSET_SWITCHES)
@pytest.mark.parametrize(
    ("value", "counts"), [("1", True), ("true", True), ("TRUE", True), ("0", False), ("", False), ("False", False)]
)
def test_noset_switches_count_as_ray_reads_them(switch: str, value: str, counts: bool) -> None:
    assert keeps_all_visible({switch: value}) is counts
    assert not keeps_all_visible({})


@pytest.mark.parametrize(
    ("text", "devices"), [(None, None), ("", ()), ("NoDevFiles", ()), ("3", ("3",)), ("2, 5", ("2", "5"))]
)
def test_visible_devices(text: str | None, devices: tuple[str, ...] | None) -> None:
    assert devices_in({} if text is None else {"CUDA_VISIBLE_DEVICES": text}) == devices


def test_device_index() -> None:
    assert device_index(None, "6") == 6
    assert device_index(["2", "5"], "5") == 1
    assert device_index(["GPU-a", "GPU-b"], "GPU-b") == 1
    with pytest.raises(RankEnvironmentError, match="may only see 2, 5"):
        device_index(["2", "5"], "0")
    with pytest.raises(RankEnvironmentError, match="may only see none"):
        device_index([], "0")
    with pytest.raises(RankEnvironmentError, match="has no number"):
        device_index(None, "GPU-a")


@pytest.mark.parametrize("name", ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
def test_amd_list_becomes_the_cuda_list(name: str) -> None:
    environ = {name: "2,5", "OTHER": "x"}
    settle_visible_devices(environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "2,5", "OTHER": "x"}
    settle_visible_devices(environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "2,5", "OTHER": "x"}


def test_equal_hip_and_cuda_lists_agree() -> None:
    environ = {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}
    settle_visible_devices(environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize(
    "environ",
    [
        {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"},
        {"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"},
        {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"},
    ],
)
def test_lists_that_clash_are_refused_and_nothing_changes(environ: dict[str, str]) -> None:
    before = dict(environ)
    with pytest.raises(RankEnvironmentError, match="are both set"):
        settle_visible_devices(environ)
    assert environ == before


@pytest.mark.parametrize("environ", [{}, {"HIP_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_nothing_to_settle(environ: dict[str, str]) -> None:
    before = dict(environ)
    settle_visible_devices(environ)
    assert environ == before
