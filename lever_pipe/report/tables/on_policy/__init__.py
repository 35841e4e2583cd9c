"""Section `on_policy`: GRPO on drawn groups beside the offline one, its cost, its KL_BETA and its marks."""
