from __future__ import annotations

from typing import Any, cast

import torch

from lever_pipe.intention.agent.arithmetic import Arithmetic


def test_bfloat16_computes_in_half_and_keeps_whole_weights() -> None:
    layer = torch.nn.Linear(4, 4)
    for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        with Arithmetic(torch.device("cpu"), cast("Any", precision)).context():
            assert layer(torch.ones(1, 4)).dtype is dtype
        assert layer.weight.dtype is torch.float32
