"""What a language model is told of its task: the messages before its first turn, and the schema of its only tool."""

from __future__ import annotations

from typing import Any

from lever_pipe.intention.records import Task

TOOL_NAME = "interact_with_env"
CHOICES = ("action", "answer", "search")

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Talk to the environment: put one question to the user.",
        "parameters": {
            "type": "object",
            "properties": {
                "choice": {
                    "type": "string",
                    "enum": list(CHOICES),
                    "description": "What kind of move this is; a question is an action.",
                },
                "content": {"type": "string", "description": "The question, in plain words."},
            },
            "required": ["choice", "content"],
        },
    },
}

SYSTEM = f"""You work with an environment that plays a user.

The environment is called IntentionGym. A user has posted a request that leaves out much of what matters to them. \
Your task is not to solve the request but to find out what the user really wants: each thing that they left unsaid, \
the most important first.

You have one tool, {TOOL_NAME}. Call it with the choice "action" and put a clarifying question into its content. The \
environment answers as the user would.

How to go about it:
- Before each call, think about what is still open, between <think> and </think>.
- Ask about one thing at a time. A question that mixes several things earns less than separate ones.
- Ask for something definite that bears on this request; vague and repeated questions earn nothing.
- The number of rounds is limited, so do not waste any.
- When nothing more needs to be asked, say so without calling the tool."""


def opening(task: Task) -> list[dict[str, str]]:
    """Return the messages before the agent's first turn."""
    request = (
        f"Category: {task.category}\n"
        f"Request: {task.task}\n\n"
        "This request leaves things open. Begin by asking the user what you need to know most."
    )
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": request}]


def told(text: str, reward: float | None) -> str:
    """Return the tool message: what the environment says, and the turn's reward unless it is hidden."""
    return text if reward is None else f"{text}\nReward: {reward:g}"
