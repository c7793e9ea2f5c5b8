"""The fake GPU refuses what torch and CUPTI would, so that a test on it can fail for a wrong call or a wrong order."""

from __future__ import annotations

import pytest
from fake_gpu import FakeGpu, FakeProton, Timeline
from triton import profiler


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch, 3.0)


def test_a_wrong_argument_is_a_type_error(gpu: FakeGpu) -> None:
    with pytest.raises(TypeError, match="enable_timming"):
        gpu.Event(enable_timming=True)
    with pytest.raises(TypeError):
        gpu._sleep()
    with pytest.raises(AssertionError, match="cycles"):
        gpu._sleep(1.5)


def test_times_are_read_after_the_device_was_waited_for(gpu: FakeGpu) -> None:
    start, end = gpu.Event(enable_timing=True), gpu.Event(enable_timing=True)
    with pytest.raises(AssertionError, match="not recorded"):
        start.query()
    start.record()
    gpu.launch()
    end.record()
    assert (start.query(), end.query()) == (True, False)
    with pytest.raises(AssertionError, match="before the device was waited for"):
        start.elapsed_time(end)
    gpu.synchronize()
    assert end.query()
    assert start.elapsed_time(end) * 1000 == pytest.approx(2 + 3, abs=0.5)
    with pytest.raises(AssertionError, match="enable_timing"):
        gpu.Event().elapsed_time(end)


def test_a_capture_takes_launches_and_nothing_else(gpu: FakeGpu) -> None:
    graph = gpu.CUDAGraph()
    with gpu.graph(graph):
        gpu.launch(7)
        for forbidden in (gpu.Event(enable_timing=True).record, gpu.synchronize, graph.replay):
            with pytest.raises(AssertionError, match="inside a capture"):
                forbidden()
        with pytest.raises(AssertionError, match="inside a capture"), gpu.graph(gpu.CUDAGraph()):
            pass
    assert graph.nodes == [7] and gpu.ran == []
    graph.replay()
    assert gpu.ran == [("default", 7)]


def test_an_error_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """E17."""
    gpu = FakeGpu(monkeypatch, 3.0, breaks_at=2)
    gpu.launch()
    gpu.launch()
    for call in (gpu.launch, gpu.synchronize, gpu.Event(enable_timing=True).record):
        with pytest.raises(RuntimeError, match="CUDA error: an illegal memory access"):
            call()


def test_the_cache_holds_what_was_touched_last_and_a_flush_empties_it() -> None:
    time = Timeline(kernel_us=10.0, l2_bytes=100, hot=0.4)
    assert [time.touch(at, 40) for at in (1, 2, 1, 3, 1, 2)] == [False, False, True, False, True, False]
    assert (time.touch(9, 200), time.touch(9, 200), time.touch(2, 40)) == (False, False, True)
    time.flush()
    assert not time.touch(2, 40)


def test_cupti_has_one_subscriber_and_ends_when_the_kernels_have(monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu) -> None:
    proton = FakeProton(monkeypatch, gpu)
    start = {"context": "shadow", "data": "tree", "backend": "cupti"}
    proton.start("one", **start)
    with pytest.raises(AssertionError, match="one subscriber"):
        proton.start("two", **start)
    gpu.launch()
    with pytest.raises(AssertionError, match="still running"):
        proton.finalize(output_format="hatchet")
    with pytest.raises(TypeError):
        proton.start("one", bakend="cupti")
    assert profiler is not proton, "the real one is bound to, and stays as it was"
