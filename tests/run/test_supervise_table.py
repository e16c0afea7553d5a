"""The supervisor's table of states: every pair of state and event has the meaning written here."""

import pytest

from trainctl.run.states import TRANSITIONS, Event, State
from trainctl.run.supervise import _ranges

# (state, event) -> state; what is not listed must not change the state.
EXPECTED = {
    State.STARTING: {
        Event.FIRST_STEP: State.RUNNING,
        Event.RANK_ENDED: State.ENDING,
        Event.STOP_ASKED: State.ENDING,
        Event.STALLED: State.KILLING,
        Event.HARD_STOP: State.KILLING,
        Event.AGENT_EXITED: State.KILLING,
    },
    State.RUNNING: {
        Event.RANK_ENDED: State.ENDING,
        Event.STOP_ASKED: State.ENDING,
        Event.STALLED: State.KILLING,
        Event.HARD_STOP: State.KILLING,
        Event.AGENT_EXITED: State.KILLING,
    },
    State.ENDING: {
        Event.HARD_STOP: State.KILLING,
        Event.DEADLINE: State.KILLING,
        Event.AGENT_EXITED: State.KILLING,
    },
    State.KILLING: {Event.ALL_GONE: State.GONE, Event.DEADLINE: State.GONE},
    State.GONE: {},
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_pair(state: State, event: Event) -> None:
    assert TRANSITIONS.get((state, event), state) == EXPECTED[state].get(event, state)


def test_every_state_leads_to_the_end() -> None:
    """From everywhere GONE can be reached, and only through KILLING, which proves that nothing is left."""
    reach = {State.GONE}
    while True:
        more = {state for (state, _), target in TRANSITIONS.items() if target in reach} - reach
        if not more:
            break
        reach |= more
    assert reach == set(State)
    assert {state for (state, _), target in TRANSITIONS.items() if target is State.GONE} == {State.KILLING}


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2, 5], "0-2, 5"), ([4, 1, 0], "0-1, 4"), ([1, 3], "1, 3")],
)
def test_ranges(ranks: list[int], text: str) -> None:
    assert _ranges(ranks) == text
