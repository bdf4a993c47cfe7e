"""A star means 5 %: how often the usual interval holds the truth, simulated by scripts/coverage.py."""

import importlib.util
from pathlib import Path

import pytest

from kvbench.analysis.resampling import DEFAULT, METHODS

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "coverage.py"
_spec = importlib.util.spec_from_file_location("coverage_simulation", SCRIPT)
simulation = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(simulation)
SETS = 4000


@pytest.mark.parametrize("clusters", [5, 8, 10, 20, 40])
@pytest.mark.parametrize("design", simulation.HELD, ids=lambda design: design.__name__)
def test_the_usual_interval_holds_its_level(design, clusters):
    """Near the ceiling, with few clusters, so few samples differ that the rule marks less than it might."""
    most = 1.0 if design is simulation.near_ceiling and clusters < 20 else 0.98
    assert 0.92 <= simulation.coverage(DEFAULT, design, clusters, SETS) <= most


@pytest.mark.parametrize("design", [simulation.binary, simulation.unequal, simulation.skewed])
def test_percentiles_are_too_narrow_on_few_clusters(design):
    """What the usual rule is there for; and the simulation can fail."""
    assert simulation.coverage("percentile", design, 8, SETS) < 0.92


@pytest.mark.parametrize(
    ("design", "clusters", "least", "most"),
    [
        (simulation.loss_at_ceiling, 8, 0.78, 0.84),
        (simulation.loss_at_ceiling, 20, 0.83, 0.93),
        (simulation.loss_at_ceiling, 40, 0.90, 0.96),
        (simulation.lopsided, 8, 0.87, 0.92),
        (simulation.lopsided, 40, 0.92, 0.96),
    ],
)
def test_what_no_interval_holds_is_as_short_as_the_docs_say(design, clusters, least, most):
    assert least <= simulation.coverage(DEFAULT, design, clusters, SETS) <= most


def test_the_script_prints_a_line_a_design_and_rule(capsys):
    simulation.main(["20"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(simulation.HELD + simulation.SHORT) * len(METHODS)
    assert all(0 <= float(share) <= 100 for line in lines[1:] for share in line.split()[2:])
