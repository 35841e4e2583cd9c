"""Compare the agent's loss with TRL's GRPO trainer on one batch; runs only where TRL, not a dependency, is installed.

Everything runs through `GRPOTrainer.compute_loss`; its batch has had the fields below since 1.16.

TRL's `delta` bounds the ratio from above. For a negative advantage this is the dual clip, and for a positive one it is
beyond the clip: the two agree wherever delta is greater than 1 + clip_high. Its loss type `dapo` divides by the tokens
of the whole batch, as ours; its entropy bonus is a mean of the micro-batch, here the whole batch. By default
it also weights k3 by the ratio (`use_bias_correction_kl`), unlike the published objective.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lever_pipe.base.seeding import torch_generator
from lever_pipe.losses.tokens import AgentTerms, agent_terms
from lever_pipe.losses.vocabulary import token_entropies, token_log_probs


def has_trl() -> bool:
    try:
        major, minor = version("trl").split(".")[:2]
    except PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= (1, 16)


pytestmark = [
    pytest.mark.skipif(not has_trl(), reason="trl >= 1.16 is not installed"),
    pytest.mark.filterwarnings("ignore"),  # TRL's and its own dependencies' deprecations
]

N_WORDS, N_PROMPT, N_RESPONSE, ROWS = 20, 4, 10, 6
CLIP_LOW, CLIP_HIGH, DUAL_CLIP, KL, ENTROPY = 0.2, 0.4, 3.0, 0.3, 0.1


def model_folder(folder: Path) -> Path:
    """A tiny Qwen3 with random weights and a word-level tokenizer, as TRL wants them: on disk."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=N_WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    random = torch_generator(0, "trl weights")
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(torch.randn(weights.shape, generator=random) * 0.2 + (weights.dim() == 1))  # norms near 1
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(N_WORDS)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w1", eos_token="w2", unk_token="w0").save_pretrained(
        folder
    )
    return folder


def batch_of(model: torch.nn.Module) -> dict[str, Any]:
    """Six episodes with padding on both sides and tool tokens between the agent's, in TRL's names."""
    random = torch_generator(0, "trl batch")
    ids = torch.randint(3, N_WORDS, (ROWS, N_PROMPT + N_RESPONSE), generator=random)
    completion_mask = (torch.arange(N_RESPONSE) < torch.tensor([10, 9, 7, 10, 6, 8])[:, None]).long()
    prompt_mask = (torch.arange(N_PROMPT) >= torch.tensor([0, 1, 2, 0, 0, 3])[:, None]).long()
    tool_mask = (torch.rand(ROWS, N_RESPONSE, generator=random) < 0.7).long()
    batch = {
        "prompt_ids": ids[:, :N_PROMPT],
        "prompt_mask": prompt_mask,
        "completion_ids": ids[:, N_PROMPT:],
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "advantages": torch.tensor([1.2, -0.7, 0.3, -1.5, 0.0, 0.9]),
        "num_items_in_batch": (completion_mask * tool_mask).sum(),
    }
    with torch.no_grad():
        now = token_log_probs(logits_of(model, batch), batch["completion_ids"])
    batch["old_per_token_logps"] = now + torch.randn(now.shape, generator=random)
    batch["ref_per_token_logps"] = now + torch.randn(now.shape, generator=random) * 0.5  # k3 below its limit
    return batch


def logits_of(model: torch.nn.Module, batch: dict[str, Any]) -> Tensor:
    """The logits of the response: the logits of a position are one position earlier."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    logits: Tensor = model(input_ids=ids, attention_mask=mask).logits[:, N_PROMPT - 1 : -1]
    return logits


def our_terms(model: torch.nn.Module, batch: dict[str, Any], kl: float, entropy: float) -> AgentTerms:
    logits = logits_of(model, batch)
    return agent_terms(
        log_probs_BT=token_log_probs(logits, batch["completion_ids"]),
        behaviour_log_probs_BT=batch["old_per_token_logps"],
        reference_log_probs_BT=batch["ref_per_token_logps"],
        entropies_BT=token_entropies(logits),
        advantages_BT=batch["advantages"][:, None].expand(-1, N_RESPONSE),
        mask_BT=(batch["completion_mask"] * batch["tool_mask"]).bool(),
        n_tokens=int(batch["num_items_in_batch"]),
        clip_low=CLIP_LOW,
        clip_high=CLIP_HIGH,
        dual_clip=DUAL_CLIP,
        kl=kl,
        entropy=entropy,
    )


def trl_trainer(folder: Path, out: Path, kl: float, entropy: float) -> Any:
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=str(out), use_cpu=True, report_to="none", loss_type="dapo", beta=kl, entropy_coef=entropy,
        epsilon=CLIP_LOW, epsilon_high=CLIP_HIGH, delta=DUAL_CLIP, num_generations=2, per_device_train_batch_size=2,
        bf16=False, gradient_checkpointing=False, use_bias_correction_kl=False,
    )  # fmt: skip
    return GRPOTrainer(
        model=str(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "w3 w4"}] * 4),
        processing_class=AutoTokenizer.from_pretrained(folder, local_files_only=True),
    )


def gradients(model: torch.nn.Module, loss: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss.backward()
    return [weights.grad.clone() for weights in model.parameters() if weights.grad is not None]


@pytest.mark.parametrize(("kl", "entropy"), [(0.0, 0.0), (KL, 0.0), (KL, ENTROPY)])
def test_loss_and_gradient_equal_those_of_trl(kl: float, entropy: float, tmp_path: Path) -> None:
    trainer = trl_trainer(model_folder(tmp_path / "model"), tmp_path / "out", kl, entropy)
    model = trainer.model.eval()  # no dropout, and the loss of one undivided batch
    batch = batch_of(model)
    ours = our_terms(model, batch, kl, entropy)
    assert min(ours.clipped.item(), ours.dual_clipped.item()) > 0  # both bounds are met
    theirs = trainer.compute_loss(model, batch)
    assert ours.total.item() == pytest.approx(theirs.item(), abs=1e-5)  # float32
    pairs = list(zip(gradients(model, ours.total), gradients(model, theirs), strict=True))
    assert pairs
    assert max((first - second).abs().max().item() for first, second in pairs) < 1e-5
