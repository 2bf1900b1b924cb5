"""What is kept, what is trained on, and in which order tasks come."""

from dataclasses import replace

import pytest

from whale import stats
from whale.config import WeightsConfig
from whale.rsft import accept_rollouts, shape, step_attempts, train_rows
from whale.types import Candidate, ModelCall, Outcome, Rollout, Task, ToolCallRequest


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


def test_a_truncated_reply_that_is_right_still_counts_in_the_mean():
    rollouts = [rollout("a", 1.0, call([3], finish="length")), rollout("a", 0.0)]
    assert stats.score(rollouts, "h", 0).mean == 0.5


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


def test_rollouts_of_several_calls_give_all_their_rows():
    """Eight rollouts, seventeen rows: none is dropped, and each rollout weighs 1."""
    rollouts = [rollout(f"t{i}", 1.0, *(call([i, j, 9]) for j in range(2 + (i == 0)))) for i in range(8)]
    rows = train_rows(rollouts, "all")
    assert len(rows) == 17
    assert sum(row.weight * len(row.sampled) for row in rows) == pytest.approx(8)


def test_figures_that_show_a_collapse():
    broken = ToolCallRequest("", {}, error="no JSON")
    rollouts = [
        rollout("a", 1.0, call([1, 2, 3, 4, 1, 2, 3, 4])),  # five pieces, the last is the first again
        rollout("a", 0.0, call([1, 2, 3, 4, 1, 2, 3, 4])),  # the same completion again
        rollout("a", 0.0, replace(call([5]), tool_calls=(broken, ToolCallRequest("run", {})))),
        rollout("b", None, call([5], finish="length"), outcome=Outcome.INFRA_ERROR),
    ]
    assert shape(rollouts) == {
        "tokens_per_rollout": 4.5, "truncated": 0.25, "repetition": 0.2, "unique": 0.75, "tool_parse_errors": 1,
        "tasks": 2, "valid": 3,
    }  # fmt: skip


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
