"""What is kept, what is trained on, and in which order tasks come."""

import pytest

from whale.config import WeightsConfig
from whale.rsft import accept_rollouts, step_attempts, train_rows
from whale.types import Candidate, ModelCall, Outcome, Rollout, Task


def call(sampled, context=(1, 2), finish="stop", marked=False):
    return ModelCall(context, tuple(sampled), (-0.1,) * len(sampled), finish, 0, 0, marked=marked)


def rollout(task, reward, *calls, outcome=Outcome.SCORED):
    return Rollout(task, 0, 0, "h", 0, outcome, reward, calls=calls or (call([3, 4]),))


def kept(rollouts, **options):
    return accept_rollouts(rollouts, WeightsConfig(**options))


def test_threshold_is_strict_and_unknown_is_not_wrong():
    rollouts = [rollout("a", 0.5), rollout("b", 0.51), rollout("c", None, outcome=Outcome.INFRA_ERROR)]
    assert kept(rollouts) == ([1], {"reward": 1, "unknown": 1})


def test_truncated_replies_are_not_accepted_by_default():
    rollouts = [rollout("a", 1.0, call([3], finish="length"))]
    assert kept(rollouts) == ([], {"truncated": 1})
    assert kept(rollouts, accept_truncated=True) == ([0], {})


def test_duplicates_and_cap_are_per_task():
    same, other = call([3, 4]), call([5])
    rollouts = [rollout("a", 1.0, same), rollout("a", 1.0, same), rollout("b", 1.0, same), rollout("a", 1.0, other)]
    assert kept(rollouts) == ([0, 2, 3], {"duplicate": 1})
    assert kept(rollouts, max_accepted_per_task=1) == ([0, 2], {"duplicate": 1, "cap": 1})
    assert kept(rollouts, deduplicate=False) == ([0, 1, 2, 3], {})
    assert kept(rollouts, deduplicate=False, max_accepted_per_task=2) == ([0, 1, 2], {"cap": 1})


def test_a_rollout_without_tokens_cannot_be_trained_on():
    """A harness that answers without calling the model may be right; there is nothing to learn from it."""
    silent = Rollout("a", 0, 0, "h", 0, Outcome.SCORED, 1.0)
    assert kept([silent]) == ([], {"reward": 1})


def test_rows_are_the_calls_as_given_to_the_engine():
    """Context mask 0, sampled ids mask 1; a rollout weighs 1 in all, spread over its tokens."""
    rows = train_rows([rollout("a", 1.0, call([7, 8, 2], (1,)), call([9], (1, 7, 8, 2, 5)))], "all")
    assert [(row.context, row.sampled, row.weight) for row in rows] == [
        ((1,), (7, 8, 2), 0.25),
        ((1, 7, 8, 2, 5), (9,), 0.25),
    ]
    assert sum(row.weight * len(row.sampled) for row in rows) == 1.0


def test_train_calls():
    two = rollout("a", 1.0, call([7], marked=True), call([8, 9]))
    assert [row.sampled for row in train_rows([two], "last")] == [(8, 9)]
    assert [row.sampled for row in train_rows([two], "marked")] == [(7,)]
    assert train_rows([rollout("a", 1.0, call([7]))], "marked") == []


HARNESS = Candidate("h0", "", "hash")
TASKS = [Task(f"t{i}", {"problem": str(i)}, "") for i in range(10)]


def ids(step, size=4):
    return [a.task.id for a in step_attempts(HARNESS, TASKS, WeightsConfig(tasks_per_step=size, samples=1), 3, step)]


def test_every_task_comes_once_an_epoch_across_step_borders():
    first_two_epochs = [task for step in range(5) for task in ids(step)]
    assert sorted(first_two_epochs[:10]) == sorted(task.id for task in TASKS)
    assert sorted(first_two_epochs[10:]) == sorted(task.id for task in TASKS)
    assert first_two_epochs[:10] != first_two_epochs[10:]


def test_order_does_not_depend_on_where_a_run_was_resumed():
    assert ids(7) == ids(7)
    assert [task for step in (2, 3) for task in ids(step)] == [task for step in range(4) for task in ids(step)][8:]


def test_seeds_differ_by_sample_and_step():
    config = WeightsConfig(tasks_per_step=10, samples=8)
    seeds = [a.seed for step in range(3) for a in step_attempts(HARNESS, TASKS, config, 0, step)]
    assert len(set(seeds)) == 3 * 10 * 8


@pytest.mark.parametrize("step", [0, 1, 5])
def test_batch_larger_than_the_split_takes_all_of_it(step):
    assert len(ids(step, size=99)) == 10
