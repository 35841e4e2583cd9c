"""Episodes as a person reads them: what the agent said, the calls it made, what the user replied and what that paid."""

from __future__ import annotations

from collections.abc import Sequence

from lever_pipe.intention.agent.rollout import Episode
from lever_pipe.intention.codecs.protocol import ChatCodec
from lever_pipe.intention.records import DialogueCall, DialogueRow, DialogueTurn, EpisodeRow, HiddenDetail

MOST_CHARACTERS = 2_000
"""Of one text; the rest of a longer one is cut off and its length told."""


def dialogue_of(episode: Episode, row: EpisodeRow, codec: ChatCodec) -> DialogueRow:
    """Return the transcript of an episode.

    Args:
        episode: as it was rolled out.
        row: what is told of it otherwise.
        codec: reads the sampled tokens.
    """
    task = episode.task
    return DialogueRow(
        **row.model_dump(),
        category=task.category,
        request=_cut(task.task),
        hidden=tuple(HiddenDetail(text=_cut(d.description), importance=d.importance) for d in task.missing_details),
        turns=tuple(_turn(episode, place, codec) for place in range(len(episode.rewards))),
    )


def _turn(episode: Episode, place: int, codec: ChatCodec) -> DialogueTurn:
    tokens: Sequence[int] = [t for t, turn in zip(episode.tokens, episode.turn, strict=True) if turn == place]
    result = episode.results[place]
    calls = [DialogueCall(choice=call.choice, content=_cut(call.content)) for call in codec.parse(tokens).calls]
    return DialogueTurn(
        said=_cut(codec.aside(tokens)),
        calls=tuple(calls),
        reply="" if result is None else _cut(result.feedback),
        uncovered=() if result is None else result.covered,
    )


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} [... {len(text)} characters]"
