"""One case in this very process, for a profiler to watch: inputs, warm-up, then a few launches that are marked.

`python -m bench.profiled CASE`, or as the script that Proton's command wants. A sweep runs its cases in a process of
their own, which not every profiler follows; here there is one process, and no clock, no check and no record. Each
marked launch lies in an NVTX range and a Proton scope named `roofmark`, and all of them between cudaProfilerStart and
cudaProfilerStop. Inputs rotate as in a run, so that the launches find a cold cache; a flush, where one is needed, is
not marked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch

from bench import l2
from bench.case import Case
from bench.device import DeviceError, choose_device
from bench.environment import environment
from bench.lookup import case_named
from bench.op_file import load_ops
from bench.run import configured, not_to_run

MARK = "roofmark"
SEED = 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the case that the command line names; exits with 2 or 3 for one that cannot, as `bench run` does."""
    parser = argparse.ArgumentParser(prog="python -m bench.profiled", description="One case for a profiler to watch.")
    parser.add_argument("case", help="its id, as `python -m bench list` prints it")
    parser.add_argument("--launches", type=int, default=20, help="marked ones")
    parser.add_argument("--device", help="cuda or cpu; the GPU when there is one")
    parser.add_argument("--op-file", type=Path, action="append", default=[], help="file with an op of your own")
    given = parser.parse_args(arguments)
    try:
        case, device = case_named(given.case, load_ops(given.op_file)), choose_device(given.device)
    except (ValueError, DeviceError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(3 if isinstance(error, DeviceError) else 2)
    refused = not_to_run(case, device)
    if refused:
        print(f"{refused[0]}: {refused[1]}", file=sys.stderr)
        sys.exit(3)
    launch_marked(case, device, given.launches)
    # No exit code is one to Proton: 3.6's command leaves without a profile when its script exits by itself.
    print(f"{given.launches} marked launches of {case.id} on {device}")


def launch_marked(case: Case, device: str, launches: int) -> None:
    """Warms every set of inputs, then launches `launches` times, going round the sets."""
    provider, _ = configured(case, device)
    inputs = case.op.make_inputs(case.workload, device, SEED)
    rotation = l2.plan(inputs, case.op.roles, environment(device).l2_bytes or 0)
    calls = [partial(provider, **one) for one in l2.rotate(inputs, case.op.roles, rotation)]
    flush = l2.flusher(rotation, device)
    for call in calls:
        call()
    with watched(device):
        for number in range(launches):
            if flush:
                flush()
            with marked(device):
                calls[number % len(calls)]()


@contextmanager
def watched(device: str) -> Iterator[None]:
    """The part that a profiler told to wait for cudaProfilerStart sees: nothing before it is still under way."""
    if device == "cpu":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    yield
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


@contextmanager
def marked(device: str) -> Iterator[None]:
    """An NVTX range on a GPU, and a Proton scope where Triton has Proton and it is recording."""
    with ExitStack() as stack:
        scope = proton_scope()
        if scope:
            stack.enter_context(scope(MARK))
        if device != "cpu":
            stack.enter_context(torch.cuda.nvtx.range(MARK))
        yield


def proton_scope() -> Callable[[str], ExitStack] | None:
    """Proton's scope, which does nothing unless a session is recording; None where it cannot be loaded."""
    try:
        from triton import profiler
    except ImportError:
        return None
    scope: Callable[[str], ExitStack] = profiler.scope
    return scope


if __name__ == "__main__":
    main()
