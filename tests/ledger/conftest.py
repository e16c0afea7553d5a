"""Factories for ledger records: a test names only what it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainctl.ledger.store import Attempt, AttemptEnd, AttemptStart


@pytest.fixture(scope="session")
def start() -> Callable[..., AttemptStart]:
    def make(attempt: int = 1, **fields: Any) -> AttemptStart:
        known = {
            "run_id": "run-a",
            "job": "job",
            "time": 1000.0 * attempt,
            "hosts": ("node01",),
            "world": 2,
            "device": "cpu",
            "config_digest": "c",
            "identity_digest": "i",
            "save_steps": 50,
        }
        return AttemptStart.model_validate({**known, "attempt": attempt, **fields})

    return make


@pytest.fixture(scope="session")
def end() -> Callable[..., AttemptEnd]:
    def make(attempt: int = 1, **fields: Any) -> AttemptEnd:
        known = {"run_id": "run-a", "job": "job", "time": 1000.0 * attempt + 900, "exit_code": 1}
        return AttemptEnd.model_validate({**known, "attempt": attempt, **fields})

    return make


@pytest.fixture(scope="session")
def attempt(start: Callable[..., AttemptStart], end: Callable[..., AttemptEnd]) -> Callable[..., Attempt]:
    """`attempt(2, first=101, last=150, durable=100)`: started at 2000 s, trained 2100 s to 2900 s."""

    def make(
        number: int = 1,
        *,
        first: int | None = None,
        last: int = 0,
        durable: int | None = 0,
        resumed: int | None = None,
        run_id: str = "run-a",
        **fields: Any,
    ) -> Attempt:
        came_from = resumed if resumed is not None else (first - 1 if first else 0)
        return Attempt(
            start=start(number, run_id=run_id, resumed_step=came_from),
            end=end(
                number,
                run_id=run_id,
                first_step=first,
                last_step=last or came_from,
                durable_step=durable,
                **{
                    "first_step_at": 1000.0 * number + 100 if first else None,
                    "cause": "process.killed",
                    **fields,
                },
            ),
        )

    return make
