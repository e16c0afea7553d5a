"""What is known about the end of an attempt, gathered in one value for `classify`. Reads; judges nothing."""

from __future__ import annotations

from trainctl.job.rundir import AttemptDir
from trainctl.run.classify import Ending
from trainctl.run.exits import read_ends
from trainctl.run.supervise import Outcome


def gather(attempt: AttemptDir, outcome: Outcome, reached_end: bool | None) -> Ending:
    """reached_end: whether the planned last step was completed, None for a trainer that does not say."""
    return Ending(
        ranks=read_ends(attempt),
        agent_code=outcome.agent_code,
        agent_error=outcome.agent_error,
        stop=outcome.stop,
        stalled=outcome.stalled,
        noticed_at=outcome.noticed_at,
        trained=outcome.trained,
        reached_end=reached_end,
    )
