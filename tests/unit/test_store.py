"""The run folder after accidents: half-written files, left-overs, a second process, too little disk."""

import json

import pytest

from whale.errors import ConfigError, StoreError
from whale.records import rollout_from_json, rollout_to_json
from whale.state import RunState
from whale.store import Store
from whale.types import ModelCall, Outcome, Policy, Rollout, ToolCallRequest, ToolUse

STATE = RunState(policy=Policy("base", 0, "digest"))


def rollout(sample, reward=1.0):
    call = ModelCall(
        (1, 2),
        (3,),
        (-0.5,),
        "stop",
        9,
        0,
        ({"role": "user", "content": "é\n"},),
        "x",
        "",
        (ToolCallRequest("t", {"a": 1}),),
        True,
    )
    return Rollout(
        "task",
        sample,
        7,
        "hash",
        0,
        Outcome.SCORED,
        reward,
        "3",
        "right",
        "",
        (call,),
        (ToolUse("t", {"a": 1}, "2", 0.1, 1),),
        0.5,
        "sum",
    )


@pytest.fixture
def store(tmp_path, config):
    store = Store(tmp_path / "run")
    assert store.open(config()) is None
    yield store
    store.close()


def test_rollouts_come_back_equal():
    assert rollout_from_json(json.loads(json.dumps(rollout_to_json(rollout(3))))) == rollout(3)


def test_a_block_counts_only_when_whole_and_in_order(store):
    with store.write_block("b") as block:
        block.started(2)
        block.add(1, rollout(1))
        assert store.read_block("b") is None
        block.add(0, rollout(0))
    assert [r.sample for r in store.read_block("b")] == [0, 1]
    assert store.wasted() == 0


def test_an_open_block_is_wasted_not_used(store, config):
    """kill -9 in the middle of a block, twice: every started rollout is booked once."""
    for _ in range(2):
        part = store.folder / "rollouts" / "b.part"
        part.write_text(
            json.dumps({"started": 5})
            + "\n"
            + json.dumps(rollout_to_json(rollout(0)))
            + '\n{"task_id": "cut in the mid'
        )
        store.close()
        store.open(config())
    assert store.wasted() == 10
    assert store.read_block("b") is None
    assert not part.exists()


def test_an_error_inside_a_block_is_booked_too(store):
    def fail():
        with store.write_block("b") as block:
            block.started(3)
            raise RuntimeError("engine")

    with pytest.raises(RuntimeError):
        fail()
    assert store.wasted() == 3


def test_half_written_and_later_checkpoints_are_set_aside(store, config):
    """Nothing loads what is newer than the state."""
    for version in (9, 10, 100):
        store.policy_folder(version).mkdir()
    state = store.commit(STATE.but(policy=Policy("base", 10, "d")))
    (store.folder / "policies" / "00011.tmp").mkdir()
    store.close()
    assert store.open(config()) == state
    assert sorted(path.name for path in (store.folder / "policies").iterdir()) == ["00009", "00010"]
    assert sorted(path.name.rsplit("-", 1)[0] for path in (store.folder / "stale").iterdir()) == ["00011.tmp", "00100"]


def test_a_state_without_its_weights_is_refused(store):
    with pytest.raises(StoreError, match="no checkpoint"):
        store.commit(STATE.but(policy=Policy("base", 3, "d")))


def test_old_checkpoints_go_by_number(store):
    for version in (2, 9, 10, 100):
        store.policy_folder(version).mkdir()
    store.prune(keep={2}, last=2)
    assert sorted(path.name for path in (store.folder / "policies").iterdir()) == ["00002", "00010", "00100"]


def test_metrics_after_the_state_are_dropped_for_the_replay(store, config):
    store.append("metrics.jsonl", {"a": 1})
    store.commit(STATE)
    store.append("metrics.jsonl", {"a": 2})
    store.close()
    store.open(config())
    assert (store.folder / "metrics.jsonl").read_text() == '{"a": 1}\n'


def test_second_process_is_refused(store, config):
    with pytest.raises(StoreError, match="in use by another process"):
        Store(store.folder).open(config())


def test_too_little_disk_is_said_before_anything_runs(tmp_path, config):
    with pytest.raises(StoreError, match=r"store.min_free_gb"):
        Store(tmp_path / "full").open(config(store={"min_free_gb": 1e9}))


def test_unreadable_state_is_named(store, config):
    (store.folder / "state.json").write_text('{"schema_version": 99')
    store.close()
    with pytest.raises(StoreError, match=r"state\.json"):
        store.open(config())


def test_name_and_retention_may_change(store, config):
    store.commit(STATE)
    store.close()
    assert store.open(config(name="other", store={"keep_last": 5})) is not None
    store.close()
    with pytest.raises(ConfigError, match=r"seed: 0 -> 1"):
        store.open(config(seed=1))


def test_not_a_run_folder(tmp_path):
    with pytest.raises(StoreError, match="not a run folder"):
        Store(tmp_path).read_config()
