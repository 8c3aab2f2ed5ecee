"""The launch contract that ranks make of what they tell each other, and the worlds that they refuse to be."""

from dataclasses import replace

import pytest

from distrun.contract.launch import LaunchContract
from distrun.errors import UsageError
from distrun.runtime.world.environments import detect
from distrun.torch_distributed.joining import Introduction, contract_variables

ALONE = Introduction(None, False, "boot1", "alpha", False, "0" * 32, "10.0.0.1:4711,[fd00::1]:4711")
ELSEWHERE = replace(ALONE, host="boot2", hostname="beta", job="1" * 32, endpoints="")
KEY = b"0123456789abcdef" * 2


def topology(everybody, rank, key=None):
    return detect(contract_variables(everybody, rank, key)).topology()


def test_ranks_of_one_host_need_neither_key_nor_endpoint():
    variables = contract_variables([ALONE, replace(ALONE, job="f" * 32)], 1, None)
    contract = LaunchContract.from_environ(variables)
    assert (contract.job, contract.key, contract.rendezvous) == ("0" * 32, "", "")
    assert repr(detect(variables).topology()) == "rank 1(2), local 1(2), host 0(1) on alpha"


def test_ranks_that_take_turns_on_two_hosts_find_their_places():
    everybody = [replace(one, has_key=True) for one in (ALONE, ELSEWHERE, ALONE)]
    assert repr(topology(everybody, 1, KEY)) == "rank 1(3), local 0(1), host 1(2) on beta"
    assert repr(topology(everybody, 2, KEY)) == "rank 2(3), local 1(2), host 0(1) on alpha"


def test_the_key_of_several_hosts_follows_from_the_users_and_is_another_one_for_each_job():
    everybody = [replace(one, has_key=True) for one in (ALONE, ELSEWHERE)]
    keys = [LaunchContract.from_environ(contract_variables(everybody, rank, KEY)).key for rank in (0, 1)]
    others = [replace(one, job="2" * 32) for one in everybody]
    assert keys[0] == keys[1] != LaunchContract.from_environ(contract_variables(others, 0, KEY)).key
    assert len(keys[0]) == 64
    assert KEY.decode() not in keys[0]
    assert detect(contract_variables(everybody, 1, KEY)).endpoint().addresses == (("10.0.0.1", 4711), ("fd00::1", 4711))


def test_a_job_or_a_world_of_all_ranks_is_taken_as_it_is():
    assert contract_variables([replace(ALONE, in_job=True)] * 2, 0, None) == {}
    assert contract_variables([replace(ALONE, world=[rank, 2]) for rank in (0, 1)], 0, None) == {}


def test_ranks_of_which_only_some_were_started_as_such_make_a_job_of_their_own():
    assert "DISTRUN_JOB" in contract_variables([replace(ALONE, in_job=True), ALONE], 0, None)


@pytest.mark.parametrize(
    ("everybody", "error"),
    [
        ([replace(ALONE, has_key=True), ELSEWHERE], "several hosts, and rank 1 no secret .*: set DISTRUN_KEY"),
        (
            [replace(ALONE, world=[0, 2]), replace(ALONE, world=[0, 4])],
            "rank 1 of 2 of the process group is rank 0 of 4 in distrun already",
        ),
        (
            [replace(ALONE, world=[0, 3]), ALONE, ALONE],
            r"rank 0 called distrun.init\(\) before init_process_group and ranks 1-2 did",
        ),
    ],
    ids=["hosts without a key", "in another world", "only some are in a world"],
)
def test_ranks_that_can_form_no_world_are_refused_by_name(everybody, error):
    with pytest.raises(UsageError, match=error):
        contract_variables(everybody, 0, KEY)
