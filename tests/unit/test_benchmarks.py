"""What `python -m benchmarks` lists."""

from __future__ import annotations

from pathlib import Path

from benchmarks.__main__ import names

FIGURES = Path("docs/benchmarks.md")


def test_every_measurement_has_its_figures_in_the_docs() -> None:
    text = FIGURES.read_text()
    assert [name for name in names() if f"benchmarks/{name}.py" not in text] == []
