"""How the world is divided: TP x PP x CP x DP = world, EP divides DP. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from trainctl.job.settings import Parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of every parallel dimension. `problems` is empty when they fit together."""

    nodes: int
    procs_per_node: int
    tp: int
    pp: int
    cp: int
    dp: int
    ep: int

    @property
    def world(self) -> int:
        return self.nodes * self.procs_per_node

    @property
    def product(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def problems(self) -> tuple[str, ...]:
        """What does not divide, in words. Empty when the layout is possible."""
        found = []
        if self.product != self.world:
            found.append(
                f"TP {self.tp} x PP {self.pp} x CP {self.cp} x DP {self.dp} = {self.product}, "
                f"but the world is {self.nodes} nodes x {self.procs_per_node} = {self.world}"
            )
        if self.dp % self.ep:
            found.append(f"EP {self.ep} does not divide DP {self.dp}")
        return tuple(found)


def resolve_layout(parallel: Parallel, nodes: int, procs_per_node: int) -> Layout:
    """Fill in dp = "auto". Never raises: what does not fit is in `Layout.problems`."""
    world = nodes * procs_per_node
    model_parallel = parallel.tp * parallel.pp * parallel.cp
    dp = max(1, world // model_parallel) if parallel.dp == "auto" else parallel.dp
    return Layout(
        nodes=nodes,
        procs_per_node=procs_per_node,
        tp=parallel.tp,
        pp=parallel.pp,
        cp=parallel.cp,
        dp=dp,
        ep=parallel.ep,
    )
