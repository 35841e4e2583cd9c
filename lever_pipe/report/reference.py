"""The files of the reference that print the selector's numbers, as published rows quote them."""

from __future__ import annotations

ACCURACY_015, ACCURACY_012, BETAS = "2025-12-20正确率.md", "2025-12-20正确率_KL012对比.md", "KL_BETA_0145_0155对比.md"
CURVES = "KL_BETA_012_vs_015_训练曲线分析报告.md"
COMPARED, FINAL = "KL_BETA_012_vs_015_对比报告.md", "KL_BETA_012_vs_015_最终对比报告.md"
"""Those with the accuracies and selections after the training-curve runs."""
FILES = {"000": (CURVES,), "001": (ACCURACY_015, BETAS), "002": (ACCURACY_015, ACCURACY_012, BETAS)}
"""Those that hold a document's numbers, in order of precedence."""
CURVE_BETAS = (0.12, 0.15)
"""The betas of the training-curve runs."""
