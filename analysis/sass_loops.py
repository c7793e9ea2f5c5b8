"""Innermost loops of SASS: natural loops by back edges, without the spins that wait on a barrier.

Only the instructions that every trip passes count as the loop's; those of blocks that some trips skip (the epilogue of
a flattened persistent loop, the retry of a wait) are kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from analysis.sass import Function, Instruction

SPIN_ONLY = frozenset((
    "SYNCS", "USETMAXREG", "BRA", "NOP", "NANOSLEEP", "YIELD", "WARPSYNC", "BSSY", "BSYNC", "PLOP3", "UPLOP3", "MOV",
    "UMOV", "CS2R", "IMAD",
))  # fmt: skip
"""What a retried wait is made of: on a barrier (SYNCS), or for registers of other warps (USETMAXREG)."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One innermost loop.

    Attributes:
        start: place of its first instruction in the function.
        every: instructions that every trip passes, in order.
        sometimes: those that some trips skip.
    """

    start: int
    every: tuple[Instruction, ...]
    sometimes: tuple[Instruction, ...]

    @property
    def stall_cycles(self) -> int:
        """Least cycles that one warp needs for a trip, alone on its scheduler: the sum of its stall counts."""
        return sum(instruction.stall for instruction in self.every)


@dataclass(frozen=True, slots=True)
class _Graph:
    """Basic blocks as ranges of instructions, reachable ones in reverse postorder, and what dominates each."""

    blocks: tuple[range, ...]
    after: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, ...], ...]
    dominators: dict[int, frozenset[int]]


def innermost_loops(function: Function) -> tuple[Loop, ...]:
    """The innermost loops of a function in the order of their code; unreachable code and spins are none."""
    graph = _graph(function)
    bodies: dict[int, set[int]] = {}
    latches: dict[int, list[int]] = {}
    for block in graph.dominators:
        for header in graph.after[block]:
            if header in graph.dominators[block]:
                bodies.setdefault(header, {header}).update(_body(graph, header, block))
                latches.setdefault(header, []).append(block)
    spins = {header for header, body in bodies.items() if _is_spin(function, graph, body)}
    waiting = set().union(*(bodies[header] for header in spins)) if spins else set()
    loops = []
    for header in sorted(set(bodies) - spins):
        body = bodies[header]
        if any(other in body for other in bodies if other != header and other not in spins):
            continue
        always = frozenset.intersection(*(graph.dominators[latch] for latch in latches[header]))
        every = [block for block in sorted(body) if block in always and block not in waiting - {header}]
        some = [block for block in sorted(body) if block not in every]
        start = graph.blocks[header].start
        loops.append(Loop(start, _code(function, graph, every), _code(function, graph, some)))
    return tuple(loops)


def _code(function: Function, graph: _Graph, blocks: list[int]) -> tuple[Instruction, ...]:
    return tuple(function.instructions[place] for block in blocks for place in graph.blocks[block])


def _is_spin(function: Function, graph: _Graph, body: set[int]) -> bool:
    bases = {instruction.base for instruction in _code(function, graph, sorted(body))}
    return bool({"SYNCS", "USETMAXREG"} & bases) and bases <= SPIN_ONLY


def _body(graph: _Graph, header: int, latch: int) -> set[int]:
    """Blocks from which the latch is reached without passing the header."""
    found, waiting = {header}, [latch]
    while waiting:
        block = waiting.pop()
        if block not in found:
            found.add(block)
            waiting += [b for b in graph.before[block] if b in graph.dominators]
    return found


def _graph(function: Function) -> _Graph:
    code = function.instructions
    jumps = [[function.labels[t] for t in i.targets if t in function.labels] for i in code]
    starts = {0, *(target for targets in jumps for target in targets)}
    starts |= {place + 1 for place, i in enumerate(code) if jumps[place] or not i.goes_on}
    edges = sorted(start for start in starts if start < len(code))
    blocks = tuple(range(a, b) for a, b in zip(edges, [*edges[1:], len(code)], strict=True))
    number = {block.start: place for place, block in enumerate(blocks)}
    after = []
    for place, block in enumerate(blocks):
        last = block[-1]
        onward = [place + 1] if code[last].goes_on and place + 1 < len(blocks) else []
        after.append(tuple(dict.fromkeys([*onward, *(number[t] for t in jumps[last] if t in number)])))
    before: list[list[int]] = [[] for _ in blocks]
    for place, following in enumerate(after):
        for next_one in following:
            before[next_one].append(place)
    return _Graph(blocks, tuple(after), tuple(map(tuple, before)), _dominators(after, before))


def _dominators(after: list[tuple[int, ...]], before: list[list[int]]) -> dict[int, frozenset[int]]:
    """Of each block that the entry reaches, the blocks on every way to it, itself included."""
    order = _reverse_postorder(after)
    dominators = {0: frozenset((0,))}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [dominators[b] for b in before[block] if b in dominators]
            now = frozenset.intersection(*known) | {block}
            if dominators.get(block) != now:
                dominators[block] = now
                changed = True
    return dominators


def _reverse_postorder(after: list[tuple[int, ...]]) -> list[int]:
    order: list[int] = []
    seen, waiting = {0}, [(0, iter(after[0]))]
    while waiting:
        block, following = waiting[-1]
        fresh = next((b for b in following if b not in seen), None)
        if fresh is None:
            order.append(block)
            waiting.pop()
        else:
            seen.add(fresh)
            waiting.append((fresh, iter(after[fresh])))
    return order[::-1]
