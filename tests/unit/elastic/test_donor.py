"""Whose state the ranks take when a generation begins."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from distrun.elastic.donor import NEW, DonorCandidate, Election, elect

STANDINGS = st.lists(st.builds(DonorCandidate, st.integers(NEW, 9), st.booleans()), min_size=1)
NEWCOMER = DonorCandidate(NEW)


@pytest.mark.parametrize(
    ("standings", "election"),
    [
        ([NEWCOMER] * 3, Election(0, 0, sends=True)),
        ([DonorCandidate(5), DonorCandidate(5)], Election(0, 5, sends=False)),
        ([DonorCandidate(4), DonorCandidate(5), DonorCandidate(5)], Election(1, 5, sends=True)),
        ([NEWCOMER, DonorCandidate(5)], Election(1, 5, sends=True)),
        ([DonorCandidate(5, False), DonorCandidate(4)], Election(1, 4, sends=True)),
        ([DonorCandidate(5, False), DonorCandidate(3), NEWCOMER], Election(1, 3, sends=True)),
        ([NEWCOMER, DonorCandidate(5, False), DonorCandidate(6, False)], Election(2, 6, sends=True, is_certain=False)),
        ([DonorCandidate(NEW, False), NEWCOMER], Election(1, 0, sends=True)),
    ],
)
def test_the_donor_is_the_clean_rank_with_the_most_boundaries(standings, election):
    assert elect(standings) == election


@given(STANDINGS)
def test_a_donor_is_as_far_as_any_that_can_be_trusted_as_much_and_sends_unless_all_have_what_it_has(standings):
    election = elect(standings)
    donor = standings[election.donor]
    assert election == elect(standings)
    clean = [standing for standing in standings if standing.is_clean and standing.boundaries > NEW]
    if clean:
        assert donor.is_clean
        assert election.boundaries == max(standing.boundaries for standing in clean)
    else:
        assert max(0, donor.boundaries) == election.boundaries
    if not election.sends:
        assert len({(standing.boundaries, standing.is_clean) for standing in standings}) == 1
