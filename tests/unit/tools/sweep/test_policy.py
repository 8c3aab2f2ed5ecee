"""The decisions of a sweep, by histories of events."""

import signal

import pytest
from hypothesis import given, strategies as st

from distrun.contract.elastic.messages import Activated, Report, Verdict
from distrun.runner.decisions import events
from distrun.runner.decisions.actions import CleanUpAfter, FinishAgents, KillAgents
from distrun.runner.decisions.elastic.actions import ConnectHosts, EndProcesses, Say
from distrun.runner.protocol.exits import RankExit
from distrun.tools.sweep.policy import actions
from distrun.tools.sweep.policy.halving import Halving
from distrun.tools.sweep.policy.hosts import place
from distrun.tools.sweep.policy.policy import Limits, Phase, Policy
from distrun.tools.sweep.policy.trials import State, Trial
from distrun.tools.sweep.search.listed import Listed


class Driven:
    """A policy with a clock, whose actions are kept."""

    def __init__(self, slots, trials, ranks=1, prune=False, needs_values=False, earlier=(), **limits):
        source = Listed([{"x": str(number)} for number in range(trials)])
        source.needs_values = needs_values
        self.told = []
        source.tell = self.told.append
        halving = Halving(True, 3, 1) if prune else None
        self.policy = Policy(slots, Limits(ranks, **limits), source, halving, earlier)
        self.now = 0.0
        self.begun = self.policy.begin(self.now)

    def __call__(self, event, after=0.0):
        self.now += after
        return self.policy.handle(event, self.now)

    def tick(self, after):
        self.now += after
        return self.policy.tick(self.now)

    def ready(self, *hosts):
        return [action for host in hosts for action in self(events.HostReady(host))]

    def end(self, trial, returncode=0, **more):
        """End all ranks of a trial."""
        done = []
        for member in trial.members:
            if member.process in trial.alive:
                if member.was_spare:
                    self(events.ProcessSaid(member.process, Activated()))
                done += self(events.RankExited(member.process, RankExit(returncode), **more))
        return done

    def report(self, trial, number, value):
        return self(events.ProcessSaid(trial.members[0].process, Report(number, value, number)))

    @property
    def running(self):
        return [trial for trial in self.policy.trials.values() if trial.state is State.RUNNING]


def ready(slots, *arguments, **options):
    """Return a sweep whose hosts are all ready."""
    sweep = Driven(slots, *arguments, **options)
    sweep.ready(*slots)
    return sweep


def of_kind(found, kind):
    return [action for action in found if isinstance(action, kind)]


def test_trials_fill_the_slots_and_each_end_begins_the_next_until_all_is_over():
    sweep = Driven({"a": 2, "b": 1}, trials=5)
    assert sweep.begun == [ConnectHosts(frozenset("ab"))]
    assert len(of_kind(sweep.ready("a"), actions.StartTrial)) == 2  # b is not waited for
    assert len(of_kind(sweep.ready("b"), actions.StartTrial)) == 1
    done = sweep.end(sweep.running[0])
    assert [type(action) for action in done] == [actions.ReleaseProcesses, actions.TrialEnded, actions.StartTrial]
    sweep.end(sweep.running[0])
    for _ in range(2):
        assert not of_kind(sweep.end(sweep.running[0]), FinishAgents)
    assert of_kind(sweep.end(sweep.running[0]), FinishAgents) == [FinishAgents(0.0)]
    sweep(events.AgentGone("a", 0))
    assert sweep.policy.phase is Phase.FINISHING
    sweep(events.AgentGone("b", 0))
    assert (sweep.policy.phase, sweep.policy.status) == (Phase.OVER, 0)
    assert [trial.number for trial in sweep.told] == [0, 1, 2, 3, 4]


def test_ranks_of_a_trial_are_on_the_host_that_it_fills_best_and_else_on_several():
    assert place({"a": [0, 1, 2, 3], "b": [1, 2]}, 2) == [("b", 1), ("b", 2)]
    assert place({"a": [0], "b": [2, 3]}, 3) == [("b", 2), ("b", 3), ("a", 0)]
    assert place({"a": [0], "b": [2]}, 3) is None


@given(st.dictionaries(st.text("abc", min_size=1), st.sets(st.integers(0, 7))), st.integers(1, 9))
def test_no_slot_is_taken_that_is_not_free(free, ranks):
    places = place({host: sorted(slots) for host, slots in free.items()}, ranks)
    if places is None:
        assert sum(map(len, free.values())) < ranks
    else:
        assert len(set(places)) == ranks
        assert all(slot in free[host] for host, slot in places)
        if any(len(slots) >= ranks for slots in free.values()):
            assert len({host for host, _ in places}) == 1


def test_a_rank_that_fails_ends_the_others_of_its_trial_and_no_other_trial():
    sweep = ready({"a": 4}, trials=2, ranks=2)
    first, second = sweep.running
    (ended,) = sweep(events.RankExited(first.members[1].process, RankExit(3)))
    assert ended == EndProcesses(frozenset({first.members[0].process}), 30.0)
    done = sweep.end(first, -15)
    assert (first.state, first.failure.rank, first.failure.status) == (State.FAILED, first.members[1].process, 3)
    assert of_kind(done, actions.TrialEnded)
    assert second.state is State.RUNNING
    assert sweep.told == [first]


def test_the_failure_of_a_rank_that_merely_lost_a_peer_waits_for_the_cause():
    sweep = ready({"a": 2}, trials=1, ranks=2)
    (trial,) = sweep.running
    assert sweep(events.RankExited(trial.members[0].process, RankExit(1), lost_peer=True)) == []
    sweep(events.RankExited(trial.members[1].process, RankExit(-9)), after=1)
    assert trial.failure.rank == trial.members[1].process
    # If there is none, the other rank is ended after a while.
    sweep = ready({"a": 2}, trials=1, ranks=2)
    (trial,) = sweep.running
    sweep(events.RankExited(trial.members[0].process, RankExit(1), lost_peer=True))
    assert sweep.policy.deadline == 2
    assert sweep.tick(2) == [EndProcesses(frozenset({trial.members[1].process}), 30.0)]


def test_trials_that_do_badly_are_told_so_on_all_ranks_and_count_as_pruned():
    sweep = ready({"a": 4}, trials=2, ranks=2, prune=True)
    good, bad = sweep.running
    everybody = tuple(member.process for member in bad.members)
    assert sweep.report(good, 1, 1.0)[0].verdict == Verdict(1, True)
    assert sweep.report(bad, 1, 2.0) == [actions.Tell(everybody, Verdict(1, False))]
    assert sweep(events.RankExited(everybody[0], RankExit(0))) == []
    # Rank 1, which may not call report, has the grace.
    assert sweep.tick(30.0) == [EndProcesses(frozenset(everybody[1:]), 30.0)]
    sweep(events.RankExited(everybody[1], RankExit(-15)))
    assert (bad.state, bad.value) == (State.PRUNED, 2.0)
    assert sweep.told == [bad]


def test_what_a_pruned_trial_reports_afterwards_does_not_count():
    sweep = ready({"a": 1}, trials=1, prune=True)
    (trial,) = sweep.running
    sweep.report(trial, 1, float("inf"))
    assert of_kind(sweep.report(trial, 2, 0.5), actions.Tell) == [actions.Tell((0,), Verdict(2, False))]
    sweep.end(trial)
    assert (trial.state, trial.value) == (State.PRUNED, float("inf"))


def test_other_ranks_wait_for_no_verdict_when_rank_0_is_done():
    sweep = ready({"a": 2}, trials=1, ranks=2, prune=True)
    (trial,) = sweep.running
    (told,) = sweep(events.RankExited(trial.members[0].process, RankExit(0)))
    assert told.verdict.goes_on
    assert told.verdict.number > 10**6


def test_a_value_that_is_printed_counts_if_none_is_reported():
    sweep = ready({"a": 2}, trials=2)
    printed, both = sweep.running
    sweep.report(printed, 0, 3.0)
    sweep.report(both, 1, 4.0)
    sweep.report(both, 0, 5.0)
    assert (printed.value, printed.step) == (3.0, None)
    assert (both.value, both.step) == (4.0, 1)


def test_a_trial_without_a_value_has_failed_where_values_are_searched_for():
    sweep = ready({"a": 1}, trials=1, needs_values=True)
    (trial,) = sweep.running
    sweep.end(trial)
    assert trial.state is State.FAILED
    assert "reported no value" in trial.failure.what
    assert sweep.policy.status == 1


def test_the_trials_of_a_lost_host_are_tried_again_elsewhere_and_it_comes_back():
    sweep = ready({"a": 1, "b": 2}, trials=2, ranks=1)
    lost, other = sweep.running
    assert (lost.hosts, other.hosts) == (["a"], ["b"])
    done = sweep(events.AgentLost("a", "it burns"))
    assert done[0] == CleanUpAfter("a")
    assert of_kind(done, actions.StartTrial) == [actions.StartTrial(lost)]
    assert (lost.attempts, lost.hosts) == (2, ["b"])
    assert sweep.tick(1.0) == [ConnectHosts(frozenset("a"))]
    sweep.ready("a")
    assert sweep.told == []


def test_ranks_on_other_hosts_of_a_trial_whose_host_is_lost_are_ended_before_it_is_tried_again():
    sweep = ready({"a": 1, "b": 1, "c": 1}, trials=1, ranks=2)
    (trial,) = sweep.running
    gone, left = trial.members
    done = sweep(events.AgentLost(gone.host, "it burns"))
    assert EndProcesses(frozenset({left.process}), 0.0) in done
    done = sweep(events.RankExited(left.process, RankExit(-9)))
    assert of_kind(done, actions.StartTrial)
    assert gone.host not in trial.hosts


def test_a_trial_that_loses_its_host_again_and_again_fails():
    sweep = ready({"a": 1}, trials=1)
    for _ in range(3):
        sweep(events.AgentLost("a", "it burns"))
        sweep.tick(10)
        sweep.ready("a")
    assert sweep.policy.trials[0].state is State.FAILED


def test_a_sweep_without_hosts_gives_up():
    refused = Driven({"a": 1, "b": 1}, trials=1)
    refused(events.HostRefused("a", "no such host"))
    assert refused.policy.phase is Phase.RUNNING
    refused(events.HostRefused("b", "no login"))
    assert (refused.policy.phase, refused.policy.status) == (Phase.OVER, 2)
    assert "b: no login" in refused.policy.failure
    lost = ready({"a": 1}, trials=1, start_timeout=60)
    lost(events.AgentLost("a", "it burns"))
    lost.tick(1.0)
    lost(events.HostRefused("a", "no route"))
    lost.tick(61.0)
    assert lost.policy.status == 1
    assert "not enough hosts" in lost.policy.failure


def test_a_resumed_sweep_of_which_no_host_can_be_used_gives_up_at_once():
    sweep = Driven({"a": 1}, trials=2, earlier=[Trial(0, {}, State.COMPLETE)])
    sweep(events.HostRefused("a", "no login"))
    assert (sweep.policy.phase, sweep.policy.status) == (Phase.OVER, 2)


def test_a_host_on_which_a_trial_came_to_its_end_is_tried_again_as_soon_as_at_first():
    sweep = ready({"a": 1, "b": 1}, trials=9)

    def lose():
        said = of_kind(sweep(events.AgentLost("a", "it burns")), Say)[0].text
        sweep.tick(700)
        sweep.ready("a")
        return said.partition("again in ")[2].partition(":")[0]

    assert [lose(), lose(), lose()] == ["1 s", "2 s", "4 s"]
    (trial,) = [trial for trial in sweep.running if trial.hosts == ["a"]]
    sweep.end(trial)
    assert lose() == "1 s"


def test_it_is_said_once_that_trials_that_report_nothing_cannot_be_pruned():
    sweep = ready({"a": 1}, trials=4, prune=True)
    sweep.report(sweep.running[0], 1, 1.0)
    assert of_kind(sweep.end(sweep.running[0]), Say) == []
    sweep.report(sweep.running[0], 0, 1.0)  # it is printed
    (said,) = of_kind(sweep.end(sweep.running[0]), Say)
    assert "--prune" in said.text
    assert of_kind(sweep.end(sweep.running[0]), Say) == []


@pytest.mark.parametrize(("most", "ends_after"), [(None, 3), (0, 1), (4, 5)])
def test_failures_end_a_sweep_when_there_are_too_many(most, ends_after):
    sweep = ready({"a": 1}, trials=10, max_failures=most)
    count = 0
    while sweep.policy.phase is Phase.RUNNING:
        sweep.end(sweep.running[0], 1)
        count += 1
    assert count == ends_after
    assert sweep.policy.status == 1
    assert ("the first 3 trials have all failed alike" in sweep.policy.failure) == (most is None)


@pytest.mark.parametrize(("ended", "status"), [(0, 1), (1, 0)])
def test_a_time_that_is_over_before_any_trial_has_ended_is_a_failure(ended, status):
    sweep = ready({"a": 2}, trials=3)
    for trial in sweep.running[:ended]:
        sweep.end(trial)
    sweep(events.TimeUp(1.0))
    assert (sweep.policy.phase, sweep.policy.status) == (Phase.FINISHING, status)


def test_a_success_or_another_failure_shows_that_the_command_is_not_simply_wrong():
    for codes in ([0, 1, 1, 1, 1], [1, 2, 1, 1, 1]):
        sweep = ready({"a": 1}, trials=10)
        for code in codes:
            sweep.end(sweep.running[0], code)
        assert sweep.policy.phase is Phase.RUNNING


def test_ctrl_c_ends_all_and_a_second_one_at_once():
    sweep = ready({"a": 1}, trials=10)
    assert sweep(events.SignalReceived(signal.SIGINT)) == [FinishAgents(30.0)]
    assert sweep(events.SignalReceived(signal.SIGINT)) == [FinishAgents(0.0)]
    (trial,) = sweep.running
    sweep.end(trial, -9)
    assert (trial.state, sweep.told) == (State.WAITING, [])
    assert sweep.tick(20) == [KillAgents()]
    assert (sweep.policy.phase, sweep.policy.status) == (Phase.OVER, 130)


def test_spares_come_when_the_first_trial_has_imported_and_become_ranks():
    sweep = ready({"a": 2}, trials=4, spares=1)
    assert sweep.policy.deadline == 3
    sweep.report(sweep.running[0], 1, 1.0)
    (started,) = sweep.tick(0)
    ((spare, host),) = started.hosts.items()
    assert host == "a"
    (begun,) = of_kind(sweep.end(sweep.running[0]), actions.StartTrial)
    assert [(member.process, member.was_spare) for member in begun.trial.members] == [(spare, True)]
    (started,) = sweep.tick(0)
    sweep(events.RankExited(next(iter(started.hosts)), RankExit(1)))  # a spare that dies is no failure of a trial
    assert not of_kind(sweep.end(sweep.running[0]), actions.StartTrial)[0].trial.members[0].was_spare
    assert {trial.state for trial in sweep.policy.trials.values()} == {State.COMPLETE, State.RUNNING}


def with_spares(ranks):
    """Return a sweep whose second trial has just begun in spares, and that trial; more spares wait."""
    sweep = ready({"a": ranks}, trials=9, ranks=ranks, spares=ranks)
    sweep.tick(3.0)
    (begun,) = of_kind(sweep.end(sweep.running[0]), actions.StartTrial)
    assert all(member.was_spare for member in begun.trial.members)
    sweep.tick(0.0)
    return sweep, begun.trial


def test_a_trial_that_began_in_a_spare_that_had_died_is_started_again_without_one():
    sweep, trial = with_spares(ranks=1)
    done = sweep(events.RankExited(trial.members[0].process, RankExit(-9)))
    assert Say("trial 1 is started again: the process on a that waited for it had died") in done
    (begun,) = of_kind(done, actions.StartTrial)
    assert begun.trial is trial
    assert [(member.was_spare, trial.attempts) for member in trial.members] == [(False, 1)]
    assert not of_kind(done, actions.TrialEnded)
    sweep.end(trial, -9)
    assert (trial.state, trial.attempts) == (State.FAILED, 1)


def test_the_other_ranks_of_a_trial_whose_spare_had_died_are_ended_first():
    sweep, trial = with_spares(ranks=2)
    dead, other = (member.process for member in trial.members)
    sweep(events.ProcessSaid(other, Activated()))
    done = sweep(events.RankExited(dead, RankExit(0)))
    assert done[1:] == [EndProcesses(frozenset({other}), 0.0)]
    done = sweep(events.RankExited(other, RankExit(-9)))
    assert of_kind(done, actions.StartTrial) == [actions.StartTrial(trial)]
    assert not any(member.was_spare for member in trial.members)


def test_a_script_that_fails_in_a_spare_has_failed():
    sweep, trial = with_spares(ranks=1)
    (process,) = trial.alive
    sweep(events.ProcessSaid(process, Activated()))
    sweep(events.RankExited(process, RankExit(1)))
    assert trial.state is State.FAILED


def test_a_spare_that_ends_with_the_sweep_is_not_said_to_have_died():
    sweep, trial = with_spares(ranks=1)
    sweep(events.SignalReceived(signal.SIGINT))
    assert not of_kind(sweep(events.RankExited(trial.members[0].process, RankExit(-15))), Say)
    assert trial.state is State.WAITING


def test_spares_are_dismissed_when_no_trial_is_to_come():
    sweep = ready({"a": 2}, trials=3, spares=1)
    spares = sweep.tick(3.0)[0].hosts
    sweep.end(sweep.running[0])  # trial 2 takes it
    (more,) = sweep.tick(0.0)
    done = sweep.end(sweep.running[0])
    assert EndProcesses(frozenset(more.hosts), 0.0) in done
    assert len(spares) == 1


def test_a_host_that_is_back_before_a_trial_has_ended_that_it_was_lost_with_has_its_slots_once():
    sweep = ready({"a": 1, "b": 1, "c": 1}, trials=9, ranks=2)
    (first,) = sweep.running
    back, *_ = first.hosts
    sweep(events.AgentLost(back, "gone"))
    sweep.ready(back)
    second = next(trial for trial in sweep.running if trial is not first)
    sweep.end(first)
    assert [trial for trial in sweep.running if trial is not second] == []


@given(st.data())
def test_whatever_happens_slots_are_never_shared_and_every_sweep_ends(data):
    slots = data.draw(st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), min_size=1))
    ranks = data.draw(st.integers(1, sum(slots.values())))
    prune, spares = data.draw(st.booleans()), data.draw(st.integers(0, 2))
    sweep = Driven(slots, trials=data.draw(st.integers(0, 6)), ranks=ranks, prune=prune, spares=spares)
    up, coming = set(), set(slots)
    for _ in range(200):
        if sweep.policy.phase is not Phase.RUNNING:
            break
        taken = [
            (member.host, member.slot)
            for trial in sweep.running
            for member in trial.members
            if member.process in trial.alive  # on a host that is lost, nothing is left
        ]
        assert len(taken) == len(set(taken))
        running = sweep.running
        kinds = ["end"] * bool(running) + ["ready"] * bool(coming) + ["report"] * bool(running) + ["tick"]
        unconfirmed = [process for trial in running for process in sorted(trial.unconfirmed & trial.alive)]
        kinds += ["lose"] * bool(up) + ["spare had died"] * bool(unconfirmed)
        match data.draw(st.sampled_from(kinds)):
            case "end":
                trial = data.draw(st.sampled_from(running))
                sweep.end(trial, data.draw(st.sampled_from([0, 0, 1, -9])))
            case "spare had died":
                process, code = data.draw(st.sampled_from(unconfirmed)), data.draw(st.sampled_from([0, -9]))
                sweep(events.RankExited(process, RankExit(code)))
            case "ready":
                up.add(host := coming.pop())
                sweep.ready(host)
            case "report":
                trial = data.draw(st.sampled_from(running))
                if trial.members[0].process in trial.alive:
                    sweep.report(trial, len(trial.reports) + 1, data.draw(st.floats(0, 1)))
            case "lose":
                up.remove(host := data.draw(st.sampled_from(sorted(up))))
                sweep(events.AgentLost(host, "gone"))
            case "tick":
                for action in of_kind(sweep.tick(data.draw(st.floats(0, 700))), ConnectHosts):
                    coming.update(action.hosts)
    while sweep.policy.phase is Phase.RUNNING and sweep.running:
        sweep.end(sweep.running[0])
    sweep(events.SignalReceived(signal.SIGTERM))
    sweep.tick(1000)
    assert sweep.policy.phase is Phase.OVER
