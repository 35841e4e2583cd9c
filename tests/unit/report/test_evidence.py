from __future__ import annotations

from itertools import product

from lever_pipe.report.evidence import Evidence, EvidenceRow


def test_rows_are_found_by_any_of_their_parts_in_order() -> None:
    parts = product(("b", "a"), ("reward", "accuracy"), ("2", "1"))
    rows = [EvidenceRow("lever", subject, metric, 0.0, shots=shots) for subject, metric, shots in parts]
    evidence = Evidence(rows)
    for subject, metric, shots in product(("a", "b", "c", None), ("accuracy", "reward", "loss", None), (1, 2, 3, None)):
        wanted = {"subject": subject, "metric": metric} | ({} if shots is None else {"shots": shots})
        expected = [
            row
            for row in rows
            if all(str(value) == getattr(row, name) for name, value in wanted.items() if value is not None)
        ]
        assert evidence.where(**wanted) == expected  # type: ignore[arg-type]
