"""`payload.train` with one fault, for tests: `faulty_train.py JSON`.

{"rank": R, "step": S, "fault": "nan" | "kill" | "raise" | "poison-loss" | "damage",
 "snapshot": DIRECTORY or null}
The fault enters through a subclass and ordinary hooks; the trainer itself knows nothing of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch

import payload.train
from payload.optimizer import named_state
from payload.trainer import Trainer

FAULT = json.loads(sys.argv[1])


class FaultyTrainer(Trainer):
    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        if FAULT["fault"] == "nan":
            self.model.blocks[0].ffn.down.weight.register_hook(self._poison)
        if FAULT["fault"] == "poison-loss":
            self.model.register_forward_hook(lambda module, inputs, loss: self._poison(loss))

    @property
    def _here(self) -> bool:
        return self.ranks.rank == FAULT["rank"] and self.progress.step == FAULT["step"]

    def _poison(self, value: torch.Tensor) -> torch.Tensor:
        return value * float("nan") if self._here else value

    def launch(self, *, stop: bool) -> float:
        if self._here and FAULT["fault"] == "damage":  # after the step, as a flipped bit would
            with torch.no_grad():
                self.model.blocks[0].ffn.down.weight[0, 0] = float("nan")
        self._snapshot(f"before-{self.progress.step + 1}")
        rate = super().launch(stop=stop)
        self._snapshot(f"after-{self.progress.step}")
        if self._here and FAULT["fault"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._here and FAULT["fault"] == "raise":
            raise RuntimeError("a fault of the test")
        return rate

    def _snapshot(self, moment: str) -> None:
        if FAULT.get("snapshot"):
            state = {k: v.clone() for k, v in named_state(self.model, self.optimizer).items()}
            torch.save(state, Path(FAULT["snapshot"]) / f"rank-{self.ranks.rank}-{moment}.pt")


payload.train.Trainer = FaultyTrainer  # type: ignore[misc]
payload.train.main()
