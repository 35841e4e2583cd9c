"""The agent: policy, rollouts, warm start, GRPO and evaluation."""
