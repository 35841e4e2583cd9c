from __future__ import annotations

import pytest
from agent_doubles import CODEC, player_of, scripted

from lever_pipe.intention.agent.evaluation import dialogue_of
from lever_pipe.intention.agent.rollout import EpisodeRequest
from lever_pipe.intention.records import DialogueRow, DialogueTurn, EpisodeRow, MissingDetail, Task

DETAILS = tuple(MissingDetail(description=slot, importance=2, options=("low",)) for slot in ("budget", "date", "place"))
TASK = Task(id="t", category="travel", task="task : travel .", missing_details=DETAILS)
ASK = "<tool_call> action what about {} </tool_call> <im_end>"


def transcript(*turns: str) -> DialogueRow:
    """Return the transcript of the episode with these turns."""
    tokens = [[CODEC.words.index(word) for word in turn.split()] for turn in turns]
    player = player_of(scripted({TASK.id: tokens}, [TASK]))
    (episode,) = player.play([EpisodeRequest(TASK, 0, 0, (0, "test", 0, 0))]).episodes
    row = EpisodeRow(
        step=3, split="test", mode="greedy", checkpoint="last", task_id="t", sample=0, rewards=tuple(episode.rewards),
        ceiling=episode.ceiling, end=episode.end, n_agent_tokens=sum(episode.is_agent),
    )  # fmt: skip
    return dialogue_of(episode, row, player)


def calls(turn: DialogueTurn) -> list[tuple[str, str]]:
    return [(call.choice, call.content) for call in turn.calls]


def test_a_turn_tells_its_calls_the_reply_and_what_it_uncovered() -> None:
    row = transcript(ASK.format("budget"), "need " + ASK.format("date and place"), "all set <im_end>")
    first, second = row.turns
    assert (first.text, calls(first)) == ("", [("action", "what about budget")])
    assert (first.reply, first.uncovered) == ("budget is low", (0,))
    assert (second.text, calls(second)) == ("need", [("action", "what about date and place")])
    assert second.uncovered == (1, 2)
    assert (row.end, row.ceiling, len(row.rewards)) == ("complete", 2.1, 2)
    assert [(detail.text, detail.importance) for detail in row.hidden] == [("budget", 2), ("date", 2), ("place", 2)]


@pytest.mark.parametrize(
    ("text", "spoken", "end"),
    [
        ("all set <im_end>", "all set", "closed"),
        ("<tool_call> what about budget <im_end>", "<tool_call> what about budget", "malformed"),
    ],
)
def test_a_turn_that_is_not_executed_stands_as_it_was_said(text: str, spoken: str, end: str) -> None:
    row = transcript(text)
    (turn,) = row.turns
    assert (turn.text, turn.calls, turn.reply, turn.uncovered, row.end) == (spoken, (), "", (), end)
