from __future__ import annotations

import pytest
import torch
from fanfold.megatron import DeviceError
from fanfold.megatron.device import DevicePlan, SeenDevice, megatron_device, plan_attention, plan_device

CPU = DevicePlan("cpu", "gloo", "float32")
NAMES = ("current_device", "synchronize", "current_stream")


def seen(*gpus: str | None) -> list[SeenDevice]:
    return [SeenDevice(rank, gpu) for rank, gpu in enumerate(gpus)]


@pytest.mark.parametrize(
    ("gpus", "options", "wanted"),
    [
        (("a", "b"), {}, DevicePlan("cuda", "nccl", "bf16")),
        (("a", "b"), {"request": "cpu"}, CPU),
        (("a", "b"), {"pipeline": 2, "precision": "float32"}, DevicePlan("cuda", "nccl", "float32")),
        (("a", "a"), {}, DevicePlan("cuda", "gloo", "bf16")),
        (("a", None), {}, CPU),
        ((None, None), {}, CPU),
        ((None,), {"precision": "bf16"}, DevicePlan("cpu", "gloo", "bf16")),
    ],
)
def test_one_plan_for_all_ranks(gpus: tuple[str | None, ...], options: dict[str, object], wanted: DevicePlan) -> None:
    assert plan_device(seen(*gpus), **options) == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpus", "options", "text"),
    [
        (("a", None, None), {"request": "cuda"}, "the ranks 1, 2 have no GPU"),
        (("a", "a"), {"pipeline": 2}, "the ranks 0, 1 share a GPU"),
        (("a",), {"request": "tpu"}, "device='tpu' must be 'auto', 'cpu' or 'cuda'"),
        (("a",), {"precision": "fp8"}, "precision='fp8' must be 'bf16' or 'float32'"),
    ],
)
def test_orders_that_cannot_be_followed(gpus: tuple[str | None, ...], options: dict[str, object], text: str) -> None:
    with pytest.raises(DeviceError, match=text):
        plan_device(seen(*gpus), **options)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the seam is for processes without CUDA")
def test_cuda_means_cpu_inside_and_nothing_outside() -> None:
    before = [getattr(torch.cuda, name) for name in NAMES]
    with megatron_device(CPU), megatron_device(CPU):
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        assert torch.zeros(2, device=torch.device("cuda", 0)).device.type == "cpu"
        assert torch.tensor([1.0], device=torch.cuda.current_device()).device.type == "cpu"
        weight = torch.zeros(2)
        assert weight.cuda() is weight
        assert weight.to("cuda").device.type == "cpu"
        assert weight.type() == "torch.cuda.FloatTensor"
        assert weight.type(torch.int64).dtype == torch.int64
        assert not torch.zeros(2, pin_memory=True).is_pinned()
        torch.cuda.synchronize()
    assert [getattr(torch.cuda, name) for name in NAMES] == before
    assert torch.zeros(2).type() == "torch.FloatTensor"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the seam is for processes without CUDA")
def test_an_error_inside_leaves_nothing_behind() -> None:
    before = [getattr(torch.cuda, name) for name in NAMES]
    with pytest.raises(KeyError), megatron_device(CPU):
        raise KeyError("x")
    assert [getattr(torch.cuda, name) for name in NAMES] == before


def test_empty_on_cuda() -> None:
    before = [getattr(torch.cuda, name) for name in NAMES]
    with megatron_device(DevicePlan("cuda", "nccl", "bf16")):
        assert [getattr(torch.cuda, name) for name in NAMES] == before
        assert torch.zeros(2).type() == "torch.FloatTensor"


def test_refused_where_cuda_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(DeviceError, match="this one sees 3"), megatron_device(CPU):
        pass


PRODUCTION = DevicePlan("cuda", "nccl", "bf16")


@pytest.mark.parametrize(
    ("plan", "request_", "installed", "wanted"),
    [
        (PRODUCTION, "auto", True, "transformer_engine"),
        (PRODUCTION, "auto", False, "sdpa"),
        (PRODUCTION, "sdpa", True, "sdpa"),
        (PRODUCTION, "transformer_engine", True, "transformer_engine"),
        (DevicePlan("cuda", "nccl", "float32"), "auto", True, "sdpa"),
        (DevicePlan("cuda", "gloo", "bf16"), "auto", True, "sdpa"),
        (CPU, "auto", True, "sdpa"),
    ],
)
def test_what_computes_attention(plan: DevicePlan, request_: str, wanted: str, *, installed: bool) -> None:
    assert plan_attention(plan, request=request_, installed=installed) == wanted


@pytest.mark.parametrize(
    ("plan", "request_", "installed", "text"),
    [
        (PRODUCTION, "transformer_engine", False, "it is not installed; say attention='auto' or 'sdpa'"),
        (CPU, "transformer_engine", True, "it needs cuda nccl bf16, and the ranks have cpu gloo float32"),
        (PRODUCTION, "flash", True, "attention='flash' must be 'auto', 'sdpa' or 'transformer_engine'"),
    ],
)
def test_attention_that_cannot_be(plan: DevicePlan, request_: str, text: str, *, installed: bool) -> None:
    with pytest.raises(DeviceError, match=text):
        plan_attention(plan, request=request_, installed=installed)
