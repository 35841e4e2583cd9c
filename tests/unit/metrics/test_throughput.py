from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.metrics import throughput

QWEN3_8B = {
    "hidden": 4096, "layers": 36, "heads": 32, "kv_heads": 8, "head_dim": 128, "mlp": 12_288, "vocabulary": 151_936
}  # fmt: skip
real_dense, real_flop = throughput.dense_parameters, throughput.training_flop
lengths = st.lists(st.integers(0, 10_000), max_size=20)


def check_qwen3_8b() -> None:
    # A layer: 3 * 4096 * 12288 = 150,994,944 and 4096 * (4096 + 1024 + 1024 + 4096) = 41,943,040, times 36
    # = 6,945,767,424; 2 * 151936 * 4096 = 1,244,659,712.
    assert throughput.dense_parameters(**QWEN3_8B) == 6_945_767_424 + 1_244_659_712 == 8_190_427_136


def check_published_step() -> None:
    # 48 sequences of 3,740 tokens: 6 * 8,190,427,136 * 179,520 = 8.8220729e15
    # and 12 * 48 * 3740^2 * 128 * 32 * 36 = 1.1880323e15, together 1.00101e16.
    dense = throughput.dense_parameters(**QWEN3_8B)
    flop = throughput.training_flop(dense, [3740] * 48, head_dim=128, heads=32, layers=36)
    assert flop == 6 * 8_190_427_136 * 179_520 + 12 * 48 * 13_987_600 * 147_456
    assert flop == pytest.approx(1.00101e16, abs=1e11)
    # At MFU .32 on three manifests of 989 TFLOP/s it takes 10.5 s; that is 1.7 % of a step of 200 s.
    assert throughput.mfu(flop, 10.54, 3 * 989e12) == pytest.approx(0.320, abs=5e-4)
    assert throughput.mfu(flop, 200.0, 3 * 989e12) == pytest.approx(0.017, abs=5e-4)


def check_attention_grows_with_the_square() -> None:
    # dense 0 keeps 12 * (1 + 4) * 2 * 3 * 5; one sequence of 3 has 9, two of 1 and 2 have 5.
    assert throughput.training_flop(0, [1, 2], head_dim=2, heads=3, layers=5) == 12 * 5 * 30
    assert throughput.training_flop(0, [3], head_dim=2, heads=3, layers=5) == 12 * 9 * 30
    assert throughput.training_flop(7, [1, 2], head_dim=0, heads=3, layers=5) == 6 * 7 * 3


def check_small_model() -> None:
    # hidden 2, 1 layer, 4 heads of 3 with 2 key-value heads, mlp 5, 7 words:
    # 3 * 2 * 5 + 2 * 3 * (4 + 2 + 2 + 4) + 2 * 7 * 2 = 30 + 72 + 28.
    assert throughput.dense_parameters(2, 1, 4, 2, 3, 5, 7) == 130


CHECKS = (check_qwen3_8b, check_published_step, check_attention_grows_with_the_square, check_small_model)


@pytest.mark.parametrize("check", CHECKS)
def test_throughput_passes_the_checks(check: Callable[[], None]) -> None:
    check()


@given(lengths, lengths)
def test_the_operations_of_two_batches_add_up(first: list[int], second: list[int]) -> None:
    counted = [real_flop(130, batch, head_dim=3, heads=4, layers=1) for batch in (first, second, [*first, *second])]
    assert counted[0] + counted[1] == counted[2]


@pytest.mark.parametrize(
    ("device", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H200", 989),
        ("NVIDIA H800", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A800-SXM4-80GB", 312),
        ("NVIDIA H20", 148),  # a separate word, not the beginning of H200
        ("nvidia h20-3e", 148),
        ("NVIDIA L40", 181),
        ("NVIDIA L20", 119.5),
    ],
)
def test_known_peaks(device: str, tera: float) -> None:
    assert throughput.peak_flop(device) == tera * 1e12


@pytest.mark.parametrize(
    "device", ["cpu", "", "NVIDIA L40S", "Tesla V100-SXM2-16GB", "NVIDIA RTX A1000", "NVIDIA B200"]
)
def test_unknown_devices_have_no_peak(device: str) -> None:
    assert throughput.peak_flop(device) is None


def test_devices_and_seconds_divide() -> None:
    # 6 operations in 2 s on 3 devices of peak 4: 6 / 24.
    assert throughput.mfu(6, 2.0, 12.0) == 0.25
    for seconds, peak in ((0.0, 1.0), (1.0, 0.0)):
        with pytest.raises(ValueError):
            throughput.mfu(1.0, seconds, peak)
