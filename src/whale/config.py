"""Typed configuration: a recipe file (TOML) plus ``key=value`` overrides become one frozen, checked ``RunConfig``.

Every field's description is its documentation; ``docs/config.md`` is generated from it. Unknown keys are refused
with the nearest known name. Loads no torch.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from whale.errors import ConfigError
from whale.types import Limits, Sampling


class Section(BaseModel):
    """A part of the configuration: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DomainConfig(Section):
    name: str = Field(description="Domain: a built-in name (`math`, `toy`) or `package.module:Class`.")
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the domain; see its page.")


class EngineConfig(Section):
    kind: Literal["transformers", "fake"] = Field(
        "transformers",
        description="What samples: transformers on this machine, or the scripted engine of `whale.testing`.",
    )
    device: str = Field("cpu", description="Device of engine and trainer: `cpu`, `cuda`, `mps`.")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Precision of the weights; training keeps fp32 copies of what it changes."
    )
    threads: int = Field(0, ge=0, description="CPU threads; 0 takes all cores. Another count gives other tokens.")
    wave_rows: int = Field(128, ge=1, description="Samples decoded together at most; bounds memory.")
    keep_mb: int = Field(
        512,
        ge=0,
        description="Memory (MB) for keys and values of finished replies, so that the next call of a rollout computes "
        "only what is new in its context; 0 keeps none.",
    )
    history: Literal["as_sampled", "template"] = Field(
        "as_sampled",
        description="Earlier replies in a context: the ids that were sampled, or what the chat template makes of them.",
    )
    thinking: bool | None = Field(
        None, description="Switches the chat template's thinking on or off; unset leaves the template's default."
    )


class TrainerConfig(Section):
    kind: Literal["torch", "fake"] = Field("torch", description="What trains.")
    lr: float = Field(
        1e-7,
        gt=0,
        description="AdamW learning rate after warm-up. The paper's launchers use 1e-7; small models need more.",
    )
    warmup_steps: int = Field(0, ge=0, description="Updates over which the learning rate rises linearly.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW decoupled weight decay.")
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW momentum coefficients.")
    clip: float = Field(1.0, gt=0, description="Largest gradient norm.")
    token_budget: int = Field(768, ge=16, description="Distinct tokens computed at once; bounds memory.")
    max_logprob_gap: float = Field(
        0.05,
        gt=0,
        description="Stop the run when sampled tokens' log-probabilities differ by more than this (nats, mean) between "
        "sampler and trainer: the sampler then has other weights.",
    )
    packing: Literal["auto", "tree", "rows"] = Field(
        "auto",
        description="`tree` computes each distinct token of an update once and needs full attention in every layer; "
        "`rows` pads rows on the right; `auto` takes the cheaper one for each update.",
    )
    lora_rank: int = Field(0, ge=0, description="Rank of the adapter that is trained; 0 trains all weights.")
    lora_alpha: int = Field(16, ge=1, description="The adapter's product is scaled by lora_alpha / lora_rank.")
    lora_targets: Literal["all-linear"] | tuple[str, ...] = Field(
        "all-linear",
        description='Layers with an adapter: last parts of their names, such as `["q_proj", "v_proj"]`, or '
        "`all-linear` for every linear layer but the output layer.",
    )


class WeightsConfig(Section):
    """Weight phase: online rejection-sampling fine-tuning (paper, section on the weight phase)."""

    tasks_per_step: int = Field(256, ge=1, description="Tasks sampled in a weight step.")
    samples: int = Field(8, ge=1, description="Rollouts per task.")
    accept_above: float = Field(0.5, ge=0, lt=1, description="A rollout is kept if its reward is greater than this.")
    accept_truncated: bool = Field(
        False, description="Keep rollouts with a reply cut by a token limit (it has no end token)."
    )
    max_accepted_per_task: int = Field(0, ge=0, description="Accepted rollouts kept per task in a step; 0 keeps all.")
    deduplicate: bool = Field(
        True, description="Keep one of several accepted rollouts of a task whose sampled tokens are equal."
    )
    min_accepted: int = Field(
        1, ge=1, description="Accepted rollouts needed for an update; fewer are carried over to the next step."
    )
    carry_across_harnesses: bool = Field(
        False,
        description="Keep carried-over rollouts when the harness has changed; they were made under other contexts.",
    )
    train_calls: Literal["all", "last", "marked"] = Field(
        "all", description="Which model calls of an accepted rollout are trained on."
    )
    minibatch: int = Field(64, ge=1, description="Accepted rollouts per optimizer update.")
    epochs: int = Field(1, ge=1, description="Passes over the accepted rollouts of a step.")
    warn_after: int = Field(3, ge=1, description="Warn after this many steps in a row without an accepted rollout.")
    guard_drop: float = Field(
        0.2,
        ge=0,
        le=1,
        description="End a weight phase at its best checkpoint once the training reward, averaged over `guard_steps`, "
        "is this far below its best of the phase; 0 never does.",
    )
    guard_steps: int = Field(3, ge=1, description="Weight steps that the guard averages over.")
    kl_every: int = Field(
        1, ge=0, description="Weight steps between measurements of the divergence from the base policy; 0: never."
    )


class ProposerConfig(Section):
    """Who writes candidates; docs/proposers.md tells how to choose and set up each kind."""

    kind: Literal["catalogue", "openai", "claude-code", "codex", "command"] = Field(
        "catalogue",
        description="Who proposes candidates: `catalogue` (offline, deterministic), `openai` (a chat endpoint with "
        "tool calls), `claude-code`, `codex`, or `command` (any program). See docs/proposers.md.",
    )
    model: str = Field("", description="Model of the proposer; required by `openai`, else the program's default.")
    effort: str = Field("", description="Reasoning effort, where the model has one; empty: its default.")
    base_url: str = Field("", description="openai: address of the endpoint; empty: OpenAI's, or `OPENAI_BASE_URL`.")
    key_variable: str = Field(
        "",
        description="Name of the environment variable that holds the key; the key itself is never in a recipe. Empty: "
        "`OPENAI_API_KEY`, `ANTHROPIC_API_KEY` (claude-code), `CODEX_API_KEY` (codex), none (command).",
    )
    program: str = Field("", description="command: the program. claude-code, codex: where theirs is, if not found.")
    arguments: tuple[str, ...] = Field(
        (),
        description="Further arguments of the program. command: `{scratch}`, `{task}` and `{outbox}` become paths.",
    )
    tools: tuple[str, ...] = Field(
        ("Read", "Glob", "Grep", "Write", "Edit"), description="claude-code: tools it may use without being asked."
    )
    seconds: float = Field(2400, gt=0, description="Longest session; what was written until then counts.")
    turns: int = Field(200, ge=1, description="openai, claude-code: most model calls of a session.")
    tokens: int = Field(4_000_000, ge=1, description="openai: most tokens of a session, contexts counted each time.")
    money: float | None = Field(
        None, gt=0, description="openai, claude-code: most US dollars of a session; unset: no limit."
    )
    context_tokens: int = Field(
        100_000, ge=4_000, description="openai: longest context; older tool results are cut to keep within it."
    )
    price_in: float | None = Field(
        None, ge=0, description="openai: US dollars per million input tokens, where the endpoint reports no cost."
    )
    price_out: float | None = Field(None, ge=0, description="openai: US dollars per million output tokens.")
    total_money: float | None = Field(
        None, gt=0, description="Most US dollars of all sessions of the run; one that could pass it is not begun."
    )
    total_sessions: int = Field(0, ge=0, description="Most sessions of the run; 0: no limit.")
    retries: int = Field(2, ge=0, description="Further sessions of a round after one that left nothing.")
    heartbeat: float = Field(60, gt=0, description="Seconds between two signs of life of a session.")
    isolation: Literal["auto", "sealed", "none"] = Field(
        "auto",
        description="claude-code, codex, command: `sealed` shuts the program in, `none` does not, `auto` does where it "
        "can. What it was is recorded with each proposal.",
    )
    visible: tuple[str, ...] = Field((), description="Further files and folders a sealed program may read.")
    variables: tuple[str, ...] = Field((), description="Names of further environment variables the program is given.")
    credentials: tuple[str, ...] = Field(
        (),
        description="Files below the home folder that a sealed program gets a copy of. claude-code and codex know "
        "their own.",
    )

    @model_validator(mode="after")
    def _names_what_it_needs(self) -> ProposerConfig:
        if self.kind == "openai" and not self.model:
            raise ValueError("kind openai needs search.proposer.model: the name the endpoint knows the model by")
        if self.kind == "command" and not self.program:
            raise ValueError("kind command needs search.proposer.program: the program to run")
        return self


class SearchConfig(Section):
    """Harness phase: Meta-Harness search (paper, section on the harness phase)."""

    tasks: int = Field(256, ge=1, description="Tasks of the search split a candidate is evaluated on.")
    samples: int = Field(1, ge=1, description="Rollouts per search task.")
    candidates: int = Field(3, ge=1, description="Candidates per proposal round (M).")
    rule: Literal["paper"] = Field("paper", description="Acceptance: best success rate, ties to fewer turns.")
    block_tasks: int = Field(64, ge=1, description="Tasks per evaluation block; a block is the unit of resume.")
    proposer: ProposerConfig = Field(default_factory=ProposerConfig, description="The proposer.")


class ScheduleConfig(Section):
    """When to switch between the phases, and when the run ends."""

    kind: Literal["fixed", "patience", "sequential", "weight_only", "harness_only"] = Field(
        "fixed",
        description="`fixed` alternates steps and rounds; `patience` ends idle phases; the rest: baselines.",
    )
    total_steps: int = Field(1, ge=0, description="Weight steps of the whole run.")
    steps: int = Field(1, ge=1, description="fixed: weight steps per cycle (E).")
    rounds: int = Field(
        1,
        ge=1,
        description="fixed: proposal rounds per cycle. The paper's I counts the first scoring too: I - 1.",
    )
    total_rounds: int = Field(
        0,
        ge=0,
        description="sequential, harness_only: proposal rounds of the run; 0: until proposer or budget is exhausted.",
    )
    window_steps: int = Field(1, ge=1, description="patience: training reward is averaged over this many steps.")
    min_steps: int = Field(1, ge=1, description="patience: least weight steps of a phase.")
    patience_steps: int = Field(
        1, ge=1, description="patience: steps without a new best average that end a weight phase."
    )
    min_rounds: int = Field(5, ge=1, description="patience: least rounds of a harness phase.")
    patience_rounds: int = Field(
        2, ge=1, description="patience: rounds without a new best score that end a harness phase."
    )
    max_rounds: int = Field(15, ge=1, description="patience: most rounds of a harness phase.")
    max_rollouts: int = Field(
        0, ge=0, description="End the run once training and search have used this many rollouts; 0 means no limit."
    )

    @model_validator(mode="after")
    def _needs_steps(self) -> ScheduleConfig:
        if self.kind != "harness_only" and self.total_steps == 0 and self.max_rollouts == 0:
            raise ValueError("total_steps is 0: give the weight phases a budget (total_steps or max_rollouts)")
        return self


class EvalConfig(Section):
    """Test evaluation: only reported, nothing else reads it."""

    k: int = Field(8, ge=1, description="Rollouts per test task (mean@k).")
    tasks: int = Field(0, ge=0, description="Test tasks; 0 takes the whole split.")
    every_rollouts: int = Field(
        0,
        ge=0,
        description="Evaluate each time training and search rollouts pass a multiple of this; 0 only at start and end.",
    )
    between_k: int = Field(0, ge=0, description="Rollouts per task at looks between start and end; 0 means k.")
    unseen: bool = Field(
        True, description="Also evaluate the split `unseen` at start and end, where the domain has one."
    )
    block_tasks: int = Field(64, ge=1, description="Tasks per evaluation block.")


class HarnessConfig(Section):
    isolation: Literal["sealed", "contained", "off"] = Field(
        "sealed", description="How candidate code is shut in; see docs/security.md."
    )
    concurrent: int = Field(512, ge=1, description="Rollouts in flight at once.")
    retries: int = Field(1, ge=0, description="Further tries of a rollout that hit an infrastructure fault.")
    max_infra_share: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Stop the run (it can be resumed) when a block has lost more than this share to infrastructure.",
    )


class StoreConfig(Section):
    checkpoint_every: int = Field(
        1,
        ge=1,
        description="Weight steps between checkpoints. Steps since are replayed from their recorded rollouts.",
    )
    keep_last: int = Field(2, ge=1, description="Checkpoints kept beside those at phase ends.")
    keep_phase_ends: bool = Field(False, description="Keep the checkpoint at the end of each weight phase.")
    min_free_gb: float = Field(2.0, ge=0, description="Refuse to start with less free disk than this (GB).")


class RunConfig(Section):
    """Everything a run depends on. A run folder belongs to exactly one of these."""

    name: str = Field("run", min_length=1, description="Shown in the report.")
    run_dir: str = Field(min_length=1, description="Run folder; relative to the working directory.")
    seed: int = Field(0, ge=0, description="Every random choice derives from it.")
    model: str = Field("smollm2-135m", description="Base policy: a name of `whale models list`, a folder, or a hub id.")
    domain: DomainConfig
    engine: EngineConfig = Field(default_factory=EngineConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    sampling: Sampling = Field(default=Sampling(), description="temperature, top_p, top_k.")
    limits: Limits = Field(default=Limits(), description="What one rollout may use at most.")
    weights: WeightsConfig = Field(default_factory=WeightsConfig)
    search: SearchConfig = Field(default_factory=SearchConfig)
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    harness: HarnessConfig = Field(default_factory=HarnessConfig)
    store: StoreConfig = Field(default_factory=StoreConfig)


def load_config(recipe: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe and apply ``key.sub=value`` overrides (values in TOML syntax; bare words are strings).

    Raises ConfigError naming the key, the value and the way out.
    """
    try:
        data = tomllib.loads(recipe.read_text())
    except FileNotFoundError:
        raise ConfigError(f"recipe {recipe} does not exist; recipes shipped with whale are in recipes/") from None
    except IsADirectoryError:
        raise ConfigError(f"recipe {recipe} is a folder; name the .toml file in it") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {recipe} is not valid TOML: {error}") from None
    for override in overrides:
        _apply(data, override)
    return build_config(data, str(recipe))


def build_config(data: Mapping[str, Any], source: str = "config") -> RunConfig:
    """Check plain data (from a recipe or a run folder's config.json). Raises ConfigError."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        lines = [_explain(item) for item in error.errors()]
        raise ConfigError(f"{source}: " + "; ".join(dict.fromkeys(lines))) from None


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """``key: old -> new`` for every leaf that differs."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {a!r} -> {b!r}")
    return lines


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"override {override!r} is not of the form key=value, e.g. schedule.steps=4")
    *path, last = key.strip().split(".")
    node = data
    for part in path:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"override {override!r}: {part} is a value, not a section")
    node[last] = _parse_value(text.strip())


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(item: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _known_names(item["loc"][:-1])
        near = difflib.get_close_matches(str(item["loc"][-1]), known, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(sorted(known))}"
        return f"unknown key {where}; {hint}"
    if item["type"] == "missing":
        return f"{where} is missing; add it to the recipe or pass {where}=VALUE"
    return f"{where}: {item['msg']} (got {item['input']!r})"


def _known_names(path: Sequence[Any]) -> list[str]:
    model: Any = RunConfig
    for part in path:
        annotation = model.model_fields[part].annotation if hasattr(model, "model_fields") else None
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        model = annotation
    fields = getattr(model, "model_fields", None) or getattr(model, "__dataclass_fields__", {})
    return list(fields)
