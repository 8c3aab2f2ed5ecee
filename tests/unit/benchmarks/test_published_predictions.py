"""Published figures, and what is predicted for them."""

from pathlib import Path

import pytest

from benchmarks.prediction.published import fit, from_first_rows, points, predict, surface
from benchmarks.prediction.tables import ASSUMED, SOURCES

DOCS = Path(__file__).parents[3] / "docs" / "predicting.md"


def test_all_points_are_efficiencies_with_a_source_and_stand_in_the_docs():
    table = DOCS.read_text()
    assert len(points()) >= 15
    for point in points():
        setup = point.setup
        assert 0.3 < point.efficiency <= 1
        assert setup.source in SOURCES
        assert setup.assumed in ASSUMED
        place = (
            f"| {point.hosts} x {setup.ranks_per_host} | {setup.link:g} {setup.transport} | {point.efficiency:.1%} |"
        )
        assert place in table


def test_a_larger_share_of_the_link_and_less_jitter_never_predict_less():
    for point in points():
        assert predict(point, 0.5, 0.01) <= predict(point, 0.9, 0.01) <= predict(point, 0.9, 0.0) <= 1


def test_a_fit_to_one_point_finds_it():
    chosen = next(point for point in points() if point.setup.source == "C" and point.efficiency < 0.7)
    shares, jitter = fit([chosen], [surface(chosen)], [0])
    assert predict(chosen, shares["RDMA"], jitter) == pytest.approx(chosen.efficiency, abs=0.005)


def test_first_rows_are_not_predicted():
    found = from_first_rows(points(), 0.008)
    assert found
    assert all(item.point.hosts > 2 for item in found)
