"""bench.device: a GPU that torch cannot use stops the run and says what mends it."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from bench import device
from bench.device import DeviceError, Sighting, TorchBuild, choose_device

H100 = "NVIDIA H100 80GB HBM3 (sm_90)"
CUDA_13 = TorchBuild("2.13.0", "13.0", False, "The NVIDIA driver on your system is too old")
CPU_BUILD = TorchBuild("2.13.0+cpu", None, False)


def machine(
    monkeypatch: pytest.MonkeyPatch, build: TorchBuild, seen: Sighting | None, visible: str | None = None
) -> None:
    """A machine as torch and the three witnesses would show it."""
    monkeypatch.setattr(device, "torch_build", lambda: build)
    monkeypatch.setattr(device, "nvidia_gpus", lambda: seen)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def refusal(asked: str | None = None) -> str:
    with pytest.raises(DeviceError) as caught:
        choose_device(asked)
    return str(caught.value)


@pytest.mark.parametrize("asked", [None, "cuda"])
def test_a_gpu_that_torch_can_use_is_used(monkeypatch: pytest.MonkeyPatch, asked: str | None) -> None:
    machine(monkeypatch, TorchBuild("2.13.0", "13.0", True), Sighting("NVML", (H100,), "580.65.06"))
    assert choose_device(asked) == "cuda"


def test_cpu_when_asked_though_a_gpu_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, CUDA_13, Sighting("NVML", (H100,), "535.104.05"))
    assert choose_device("cpu") == "cpu"


def test_cpu_when_no_witness_sees_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, CUDA_13, None)
    assert choose_device(None) == "cpu"


def test_e19_cuda_asked_on_a_platform_without_it_names_platform_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, CPU_BUILD, None)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert choose_device(None) == "cpu"
    text = refusal("cuda")
    assert "no NVIDIA GPU on this Darwin machine" in text and "--device cpu" in text


@pytest.mark.parametrize("asked", [None, "cuda"])
def test_e06_old_driver_names_gpu_driver_and_needed_driver(monkeypatch: pytest.MonkeyPatch, asked: str | None) -> None:
    machine(monkeypatch, CUDA_13, Sighting("NVML", (H100,), "535.104.05"))
    text = refusal(asked)
    for part in (H100, "535.104.05 is too old", "2.13.0, built for CUDA 13.0", "580 or newer", "nvidia-driver-580"):
        assert part in text
    assert "torch built for CUDA 12, which this driver runs" in text


@pytest.mark.parametrize(("cuda", "driver"), [("13.0", "470.82"), ("12.8", "470.82")])
def test_older_cuda_is_offered_only_where_its_driver_does(
    monkeypatch: pytest.MonkeyPatch, cuda: str, driver: str
) -> None:
    machine(monkeypatch, TorchBuild("2.13.0", cuda, False), Sighting("NVML", (H100,), driver))
    text = refusal()
    assert "too old" in text and "torch built for CUDA 12, which" not in text


def test_cpu_build_beside_a_gpu_gets_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, CPU_BUILD, Sighting("nvidia-smi", (H100,), "580.65.06"))
    text = refusal()
    assert "2.13.0+cpu is not built for CUDA" in text
    assert f"{sys.executable} -m pip install --force-reinstall torch==2.13.0." in text


@pytest.mark.parametrize("hidden", ["", " ", "-1"])
def test_hidden_gpus_are_not_a_request_for_the_cpu(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    machine(monkeypatch, CUDA_13, Sighting("NVML", (H100,), "580.65.06"), visible=hidden)
    text = refusal()
    assert f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU" in text
    assert "unset CUDA_VISIBLE_DEVICES" in text and "--device cpu" in text


def test_good_driver_passes_on_what_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    build = TorchBuild("2.13.0", "13.0", False, "system not yet initialized")
    machine(monkeypatch, build, Sighting("NVML", (H100,), "580.65.06"), visible="7")
    text = refusal()
    assert "should do" in text and "system not yet initialized" in text and "too old" not in text
    assert "CUDA_VISIBLE_DEVICES='7' may name no GPU" in text


def test_device_nodes_without_a_driver_are_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, CUDA_13, Sighting("/dev/nvidia*", ("/dev/nvidia0",), None))
    text = refusal()
    assert "/dev/nvidia0" in text and "no driver answers" in text and "--gpus all" in text


def test_unknown_device_is_a_usage_error() -> None:
    with pytest.raises(ValueError, match="cuda:1: wanted cuda or cpu"):
        choose_device("cuda:1")


class FakeNvml(types.ModuleType):
    """Two GPUs, of which the second keeps its name to itself."""

    class NVMLError(Exception):
        """What NVML raises."""

    count, broken = 2, False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.broken:
            raise self.NVMLError("Driver/library version mismatch")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65.06"

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        if handle:
            raise self.NVMLError("Insufficient Permissions")
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> list[int]:  # noqa: N802
        return [9, 0]


def test_nvml_tells_name_architecture_and_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    assert device.seen_by_nvml() == Sighting("NVML", (H100, "a GPU that does not tell its name"), "580.65.06")


@pytest.mark.parametrize("how", ["missing", "broken", "empty"])
def test_nvml_that_sees_nothing_leaves_it_to_the_next_witness(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    nvml = FakeNvml("pynvml")
    nvml.broken, nvml.count = how == "broken", 0 if how == "empty" else 2
    monkeypatch.setitem(sys.modules, "pynvml", None if how == "missing" else nvml)
    monkeypatch.setattr(device, "seen_by_nvidia_smi", lambda: Sighting("nvidia-smi", ("x",), None))
    seen = device.nvidia_gpus()
    assert seen is not None and seen.seen_by == "nvidia-smi"


@pytest.mark.parametrize(
    ("output", "code", "expected"),
    [
        (
            "NVIDIA A100, 80GB, 550.54.15\nNVIDIA H100, 550.54.15\n",
            0,
            (("NVIDIA A100, 80GB", "NVIDIA H100"), "550.54.15"),
        ),
        ("NVIDIA H100, [N/A]\n", 0, (("NVIDIA H100",), None)),
        ("No devices were found\n", 0, None),
        ("NVIDIA-SMI has failed because it couldn't communicate, sorry\n", 9, None),
    ],
)
def test_nvidia_smi_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str, code: int, expected: tuple[object, ...] | None
) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{output}END\nexit {code}\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert device.seen_by_nvidia_smi() == (Sighting("nvidia-smi", *expected) if expected else None)  # type: ignore[arg-type]


def test_nvidia_smi_that_is_missing_or_hangs_sees_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert device.seen_by_nvidia_smi() is None

    def hang(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 30)

    monkeypatch.setattr(subprocess, "run", hang)
    assert device.seen_by_nvidia_smi() is None


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", "580.65.06"),
        (None, None),
    ],
)
def test_device_nodes_and_kernel_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, driver: str | None
) -> None:
    monkeypatch.setattr(device, "DEV", tmp_path)
    monkeypatch.setattr(device, "KERNEL_MODULE", tmp_path / "version")
    for name in ("nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert device.seen_in_dev() is None
    (tmp_path / "nvidia0").touch()
    if text is not None:
        (tmp_path / "version").write_text(text, encoding="utf-8")
    assert device.seen_in_dev() == Sighting(f"{tmp_path}/nvidia*", (f"{tmp_path}/nvidia0",), driver)


def test_torch_build_keeps_torchs_reason_and_prints_no_warning(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def refuse() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nPlease update")

    def unavailable() -> bool:
        import warnings

        warnings.warn("CUDA initialization: too old", stacklevel=2)
        return False

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", unavailable)
    monkeypatch.setattr(torch.cuda, "init", refuse)
    build = device.torch_build()
    assert build.trouble == "The NVIDIA driver on your system is too old (found version 12020)."
    assert (build.cuda, build.usable) == ("13.0", False) and not recwarn.list


def test_a_rocm_gpu_is_not_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not device.torch_build().usable


@pytest.mark.parametrize(
    ("cuda", "driver"), [("13.0", 580), ("12.8", 525), ("12.9", 525), ("14.1", None), (None, None)]
)
def test_needed_driver(cuda: str | None, driver: int | None) -> None:
    assert device.needed_driver(cuda) == driver


def test_e06_kernel_image_error_gains_driver_needed_driver_and_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, TorchBuild("2.13.0", "13.0", True), Sighting("NVML", (H100, H100), "575.1"))
    text = device.explain_cuda_error("Triton Error [CUDA]: device kernel image is invalid")
    assert text.startswith("Triton Error [CUDA]: device kernel image is invalid [")
    assert text.count("sm_90") == 1
    assert "driver: 575.1" in text and "580 or newer" in text


def test_other_errors_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "torch_build", lambda: pytest.fail("asked torch for an unrelated error"))
    assert device.explain_cuda_error("CUDA out of memory") == "CUDA out of memory"
