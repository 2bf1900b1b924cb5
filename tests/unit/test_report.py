"""Reports of run folders made through the public store: what they say, and what they must never let through."""

import io
import json
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from plotly.offline import get_plotlyjs
from rich.console import Console

from whale import stats
from whale.archive import Archive, make_candidate
from whale.config import build_config
from whale.errors import StoreError
from whale.loop import alternate
from whale.report.data import summarise
from whale.report.html import write_report
from whale.report.picture import write_picture
from whale.report.text import print_report
from whale.report.view import notices
from whale.state import Counters, Look, Phase, PhaseRecord, RunState
from whale.store import Store
from whale.types import ModelCall, Outcome, Policy, Rollout, Score, ToolUse

H0 = 'class Harness:\n    async def run(self, task, session):\n        return "plain"\n'
EVIL = "<script>alert('candidate')</script>"
SECRET = "the-reference-42"


def rollout(task, sample, reward, policy):
    """A rollout of one call and one tool use; ``reward=None`` is one lost to infrastructure."""
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{EVIL} What is {task}?"})
    call = ModelCall((1, 2), (3, 4, 5), (-0.1, -0.2, -0.3), "stop", 7, policy, messages, text=f"reply to {task}")
    outcome = Outcome.INFRA_ERROR if reward is None else Outcome.SCORED
    reason = "" if reward is None else "right" if reward else "wrong"
    tool = ToolUse("calculator", {"code": "1 + 1"}, "2", 0.1, 1)
    return Rollout(
        task,
        sample,
        7,
        "hash",
        policy,
        outcome,
        reward,
        "2",
        reason,
        SECRET,
        (call,),
        (tool,),
        family=f"set {EVIL} {int(task[1:]) % 2}",
    )


def look(store, when, axis, policy, harness, rewards, split="test", k=2):
    """A look whose tasks have these rewards, k of each, with its block on disk."""
    key = f"e-{split}-{policy}-{harness}"
    rollouts = [rollout(f"t{i // k}", i % k, reward, policy) for i, reward in enumerate(rewards)]
    if store.read_block(key) is None:
        with store.write_block(key) as writer:
            for order, one in enumerate(rollouts):
                writer.add(order, one)
    estimate = stats.mean_at_k(rollouts, k).to_json()
    return Look(
        split=split, rollouts=axis, blocks=(key,), policy_version=policy, harness=harness, estimate=estimate, when=when
    )


def add_candidates(store):
    """h0, an accepted one, one that was no better, one that crashed in the smoke run."""
    archive = Archive(store.folder / "candidates")
    sources = [
        ("", H0),
        ("nested " + EVIL, H0.replace('"plain"', f'"better {EVIL}"')),
        ("worse", H0.replace("plain", "worse")),
        ("crash", H0.replace('return "plain"', "raise ValueError")),
    ]
    for number, (idea, source) in enumerate(sources):
        origin = {"parent": "h0", "phase": 1, "round": 1} if number else {}
        archive.add(make_candidate(number, source, hypothesis=idea, axis="prompt[a]", mechanism=f"m{number}", **origin))
    for number, mean in ((0, 0.25), (1, 0.5), (2, 0.2)):
        archive.record(Score(f"h{number}", 1, mean, 8, 8, 1.0, 3.0, {"wrong": 6}), f"h{number}", 1)
    archive.reject("h3", "smoke", "harness_error: ValueError")


def phase_record(kind, index, before, after, policies, harnesses=("h0", "h0"), values=(0.1, 0.3)):
    return PhaseRecord(
        phase=Phase(kind=kind, index=index), units=len(values), values=values, harness_before=harnesses[0],
        harness_after=harnesses[1], policy_before=policies[0], policy_after=policies[1], rollouts_before=before,
        rollouts_after=after, ended="budget",
    )  # fmt: skip


def log(store, rollouts, **fields):
    store.append("metrics.jsonl", {"rollouts": rollouts, **fields})


def make_folder(folder, finished=True, end=(1, 1, 1, 0), isolation="sealed", wasted=0):
    """A run of two weight phases and a search between them; its folder."""
    config = build_config({
        "run_dir": str(folder), "name": f"toy {EVIL}", "seed": 3, "model": "fake", "domain": {"name": "toy"},
        "engine": {"kind": "fake"}, "trainer": {"kind": "fake"}, "eval": {"k": 2}, "store": {"min_free_gb": 0.0},
        "harness": {"isolation": isolation},
    })  # fmt: skip
    store = Store(folder)
    store.open(config)
    add_candidates(store)
    looks = [look(store, "start", 0, 0, "h0", (0, 0, 1, 0)), look(store, "start", 0, 0, "h0", (0, 1), "unseen")]
    for step, at in enumerate((16, 32)):
        log(store, at, kind="step", step=step + 1, reward=0.2, accepted=4, harness="h0", unique=0.9, loss=1.5)
    for number, score in ((1, 0.5), (2, 0.2), (3, None)):
        log(store, 40 + 8 * min(number, 2), kind="candidate", candidate=f"h{number}", score=score)
    looks.append(look(store, "between", 56, 1, "h1", (0, 1, 1, 0)))
    history = [
        phase_record("weights", 0, 0, 32, (0, 1)),
        phase_record("harness", 1, 32, 56, (1, 1), ("h0", "h1"), (0.25, 0.5)),
    ]
    if finished:
        log(store, 72, kind="step", step=3, reward=0.4, accepted=8, harness="h1", unique=0.8, loss=1.1)
        looks += [look(store, "end", 72, 2, "h1", end), look(store, "end", 72, 2, "h1", (1, 1), "unseen")]
        history.append(phase_record("weights", 2, 56, 72, (1, 2), ("h1", "h1")))
    version = len(history) - 1
    store.policy_folder(version).mkdir()
    if wasted:
        store.append("wasted.jsonl", {"block": "w1", "rollouts": wasted})
    train = 48 if finished else 32
    counters = Counters(train=train, search=24, eval=16, sampled_tokens=264, trained_tokens=90, accepted=8)
    store.commit(RunState(
        step=4, history=tuple(history), policy=Policy("fake", version, "d"), harness="h1", candidates=4,
        counters=counters, looks=tuple(looks), finished=finished,
    ))  # fmt: skip
    store.close()
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run, shared by the tests that only read it."""
    return make_folder(tmp_path_factory.mktemp("report") / "run", wasted=5)


@pytest.fixture(scope="module")
def page(folder, tmp_path_factory):
    """The page of that run, without the text of the chart library."""
    return read_page(write_report(folder, tmp_path_factory.mktemp("page") / "page.html"))


class Page(HTMLParser):
    """The elements of a page; ``text`` holds what is shown, ``data`` what stands in inert scripts."""

    def __init__(self):
        super().__init__()
        self.elements, self.text, self.data = [], [], []
        self._inside = ""

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("type") or tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        {"application/json": self.data, "script": [], "style": []}.get(self._inside, self.text).append(data)

    @property
    def shown(self):
        return " ".join(" ".join(self.text).split())


def read_page(path):
    parser = Page()
    parser.feed(path.read_text().replace(get_plotlyjs(), ""))  # nearly all of the page, and slow to parse
    return parser


def test_the_summary_has_the_figures_of_the_run(folder):
    summary = summarise(folder)
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["domain"], summary["model"], summary["seed"], summary["isolation"]) == ("toy", "fake", 3, "sealed")
    test = summary["test"]
    assert (test["start"]["mean"], test["end"]["mean"], test["gain"]["mean"]) == (0.25, 0.75, 0.5)
    assert set(test["start"]) == {"mean", "low", "high", "k", "tasks", "coverage"}
    assert (test["gain"]["tasks"], test["gain"]["low"] <= 0.5 <= test["gain"]["high"]) == (2, True)
    assert (test["best"]["mean"], test["best"]["looks"], len(test["looks"])) == (0.75, 3, 3)
    assert summary["unseen"]["gain"]["mean"] == 0.5
    assert (summary["cycles"], summary["weight_steps"], summary["weight_updates"]) == (1, 4, 2)
    assert (summary["finished"], summary["regression"], summary["harness_changed"]) == (True, False, True)
    assert {key: summary["rollouts"][key] for key in ("train", "search", "eval", "wasted", "axis")} == {
        "train": 48, "search": 24, "eval": 16, "wasted": 5, "axis": 72,
    }  # fmt: skip
    assert [phase["kind"] for phase in summary["phases"]] == ["weights", "harness", "weights"]
    assert summary["tokens"] == {"sampled": 264, "trained": 90}


def test_each_family_has_its_figures_and_counts_alike_in_their_mean(folder):
    families = summarise(folder)["test"]["families"]
    ends = [family["end"] for family in families["each"].values()]
    assert [end["tasks"] for end in ends] == [1, 1]
    assert families["average"]["end"] == pytest.approx(sum(end["mean"] for end in ends) / 2)
    starts = [family["start"]["mean"] for family in families["each"].values()]
    assert starts == [0.0, 0.5]
    assert families["average"]["start"] == 0.25


def test_every_candidate_has_a_verdict_and_its_phase_s_score(folder):
    summary = summarise(folder)
    verdicts = {entry["id"]: entry["verdict"] for entry in summary["candidates"]}
    assert verdicts == {"h0": "seed", "h1": "accepted", "h2": "not better", "h3": "rejected at smoke"}
    crashed = summary["candidates"][3]
    assert (crashed["score"], crashed["reason"]) == (None, "harness_error: ValueError")
    (accepted,) = summary["accepted"]
    assert (accepted["harness"], accepted["before"], accepted["score"]) == ("h1", 0.25, 0.5)


def test_an_unfinished_run_has_no_end(tmp_path):
    folder = make_folder(tmp_path / "run", finished=False)
    summary = summarise(folder)
    assert (summary["finished"], summary["test"]["end"], summary["test"]["gain"]) == (False, None, None)
    assert (summary["regression"], summary["test"]["best"]["looks"], summary["cycles"]) == (False, 2, 1)
    shown = read_page(write_report(folder)).shown
    assert "not finished" in shown
    assert "at the latest look" in shown


def test_a_run_before_its_first_commit_can_be_reported(tmp_path):
    store = Store(tmp_path / "run")
    store.open(build_config({"run_dir": "run", "domain": {"name": "toy"}, "store": {"min_free_gb": 0.0}}))
    summary = summarise(store.folder)
    assert (summary["test"]["start"], summary["phases"], summary["candidates"]) == (None, [], [])
    assert "not reached yet" in read_page(write_report(store.folder)).shown
    ElementTree.parse(write_picture(store.folder, tmp_path / "picture.svg"))
    store.close()


def test_what_is_newer_than_the_last_commit_is_left_out(tmp_path):
    folder = make_folder(tmp_path / "run")
    Archive(folder / "candidates").add(make_candidate(4, H0, parent="h2", phase=3))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "cut')
    verdicts = [entry["verdict"] for entry in summarise(folder)["candidates"]]
    assert verdicts == ["seed", "accepted", "not better", "rejected at smoke"]


def test_a_regression_is_marked_everywhere(tmp_path):
    folder = make_folder(tmp_path / "run", end=(0, 0, 0, 0))
    summary = summarise(folder)
    assert (summary["regression"], summary["test"]["gain"]["mean"]) == (True, -0.25)
    ((tone, text),) = notices(summary)
    assert tone == "bad"
    assert "Regression" in text
    assert "includes 0" in text, "two tasks cannot tell"
    assert "REGRESSION" in printed(summary)


def test_rollouts_lost_to_infrastructure_show_as_coverage_not_as_a_regression(tmp_path):
    folder = make_folder(tmp_path / "run", end=(0, 0, None, None))  # task t1, the only one ever solved, was lost
    summary = summarise(folder)
    assert (summary["test"]["end"]["coverage"], summary["test"]["gain"]["tasks"]) == (0.5, 1)
    assert summary["regression"] is False
    ((tone, text),) = notices(summary)
    assert tone == "note"
    assert "coverage of the test looks is 50.0%" in text


def test_usage_is_summed_over_launches(tmp_path):
    folder = make_folder(tmp_path / "run")
    assert (summarise(folder)["seconds"], summarise(folder)["peak_rss_bytes"]) == (None, None)
    for seconds, peak in ((10.5, 100), (20.0, 300)):
        Store(folder).append("usage.jsonl", {"seconds": seconds, "peak_rss_bytes": peak})
    assert (summarise(folder)["seconds"], summarise(folder)["peak_rss_bytes"]) == (30.5, 300)


@pytest.mark.parametrize("text", [None, '{"run_dir": "x"}'])
def test_a_folder_that_is_no_run_is_refused(tmp_path, text):
    if text:
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match="domain is missing"):
            summarise(tmp_path)
    else:
        with pytest.raises(StoreError, match="not a run folder"):
            summarise(tmp_path)


def test_reading_takes_no_lock_and_changes_nothing(tmp_path):
    folder = make_folder(tmp_path / "run")
    holder = Store(folder)
    holder.open(holder.read_config())
    before = sorted(folder.rglob("*"))
    summarise(folder)
    assert sorted(folder.rglob("*")) == before
    holder.close()


def test_text_of_candidates_and_rollouts_is_never_markup(page):
    assert EVIL in page.shown
    scripts = [attrs for tag, attrs in page.elements if tag == "script"]
    assert len([attrs for attrs in scripts if attrs.get("type") != "application/json"]) == 2, "plotly and our own"
    assert not any("alert" in name or name.startswith("on") for _, attrs in page.elements for name in attrs)
    figure = json.loads(page.data[0])
    assert not any("<script" in json.dumps(trace.get("text", "")) for trace in figure["data"])


def test_the_page_loads_nothing_and_allows_only_its_own_scripts(page):
    names = {name for _, attrs in page.elements for name in attrs}
    assert not names & {"src", "href", "data", "srcset", "background", "action"}
    assert not any(tag in ("link", "iframe", "object", "embed", "img") for tag, _ in page.elements)
    (policy,) = [attrs["content"] for tag, attrs in page.elements if tag == "meta" and "http-equiv" in attrs]
    assert policy.startswith("default-src 'none'")
    assert policy.count("'sha256-") == 2
    assert "http" not in policy


def test_the_page_shows_figures_diffs_and_sample_rollouts(page):
    for text in ("0.250", "0.750", "+0.500", "paired over 2 tasks", "best of 3 looks", "wasted by interruptions 5"):
        assert text in page.shown
    classes = [attrs.get("class") for tag, attrs in page.elements if tag == "span"]
    assert "add" in classes
    assert "del" in classes
    assert '- return "plain"' in page.shown
    for text in ("Wrong before, right after", "Wrong both times", "calculator(code='1 + 1')", "reply to t0"):
        assert text in page.shown
    assert SECRET not in page.shown, "a scored rollout's detail belongs to the verifier"


def test_the_main_chart_has_looks_phases_candidates_and_rewards(page):
    figure = json.loads(page.data[0])
    traces = {trace["name"]: trace for trace in figure["data"]}
    assert traces["test mean@2"]["x"] == [0, 56, 72]
    assert [trace["y"] for trace in figure["data"] if trace["name"] == "training reward"] == [[0.2, 0.2], [0.4]]
    assert traces["accepted harness"]["x"] == [48]
    assert traces["candidate (search score)"]["y"] == [0.2]
    phases = [(shape["x0"], shape["x1"]) for shape in figure["layout"]["shapes"] if shape["type"] == "rect"]
    assert phases == [(0, 32), (32, 56), (56, 72)]


def test_the_picture_is_well_formed_and_small(folder, tmp_path):
    path = write_picture(folder, tmp_path / "deep" / "picture.svg")
    root = ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polygon"))) == 2, "the accepted harness and its legend"
    assert path.stat().st_size < 20_000


def printed(summary):
    out = io.StringIO()
    print_report(summary, Console(width=110, file=out))
    return out.getvalue()


def test_the_terminal_report_reads_without_colours(folder):
    text = printed(summarise(folder))
    for part in ("finished", "test start", "0.250", "+0.500", "5 wasted", "prompt[a]", "best of 3 looks", "1 cycle,"):
        assert part in text
    assert "\x1b" not in text
    assert "unseen gain" in text


@pytest.mark.slow
def test_a_run_of_the_real_loop_is_reported(make_run):
    run, state = make_run(
        weights={"tasks_per_step": 2, "samples": 2}, search={"tasks": 2, "candidates": 1}, eval={"k": 1, "tasks": 2},
        schedule={"total_steps": 2, "steps": 1, "rounds": 1},
    )  # fmt: skip
    state = alternate(run, state)
    summary = summarise(run.store.folder)
    assert [phase["kind"] for phase in summary["phases"]] == ["weights", "harness", "weights"]
    assert [entry["id"] for entry in summary["candidates"]] == [f"h{number}" for number in range(state.candidates)]
    assert summary["rollouts"]["axis"] == state.counters.axis == summary["test"]["looks"][-1]["rollouts"]
    page = read_page(write_report(run.store.folder))
    names = [trace["name"] for trace in json.loads(page.data[0])["data"]]
    assert {"test mean@1", "training reward"} <= set(names)
