"""The states of one attempt under supervision, and what every event means in each: a table."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    STARTING = "starting"  # torchrun spawned, no step yet
    RUNNING = "running"
    ENDING = "ending"  # asked to end, or a rank has ended: waiting, with a deadline
    KILLING = "killing"  # SIGKILL to everything of this attempt until nothing is left
    GONE = "gone"


class Event(Enum):
    FIRST_STEP = "first step"
    RANK_ENDED = "rank ended"  # with anything but 0
    STOP_ASKED = "stop asked"
    HARD_STOP = "hard stop"
    STALLED = "stalled"
    DEADLINE = "deadline"
    AGENT_EXITED = "agent exited"
    ALL_GONE = "all gone"


# What is not in the table changes nothing.
TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.STARTING, Event.FIRST_STEP): State.RUNNING,
    (State.STARTING, Event.RANK_ENDED): State.ENDING,
    (State.STARTING, Event.STOP_ASKED): State.ENDING,
    (State.STARTING, Event.STALLED): State.KILLING,
    (State.STARTING, Event.HARD_STOP): State.KILLING,
    (State.STARTING, Event.AGENT_EXITED): State.KILLING,
    (State.RUNNING, Event.RANK_ENDED): State.ENDING,
    (State.RUNNING, Event.STOP_ASKED): State.ENDING,
    (State.RUNNING, Event.STALLED): State.KILLING,
    (State.RUNNING, Event.HARD_STOP): State.KILLING,
    (State.RUNNING, Event.AGENT_EXITED): State.KILLING,
    (State.ENDING, Event.HARD_STOP): State.KILLING,
    (State.ENDING, Event.DEADLINE): State.KILLING,
    (State.ENDING, Event.AGENT_EXITED): State.KILLING,
    (State.KILLING, Event.ALL_GONE): State.GONE,
    (State.KILLING, Event.DEADLINE): State.GONE,
}
