"""Training of the embedded world's two models: a tiny Qwen2.5-VL and a tiny CLIP."""
