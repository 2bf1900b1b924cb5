"""From a checked configuration to a run that can start: loads tasks, engine, trainer and proposer, in that order.

What is cheap to check comes first, so that bad input is refused before anything expensive is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whale.archive import Archive, make_candidate
from whale.config import RunConfig
from whale.domains import load_domain
from whale.domains.base import check_disjoint
from whale.errors import ConfigError, DomainError, HarnessError
from whale.harness.validate import check_source
from whale.models import resolve
from whale.progress import Progress
from whale.proposers.brief import GENERAL_SKILL
from whale.proposers.catalogue import CatalogueProposer
from whale.proposers.session import AgenticProposer
from whale.proposers.workers import worker_of
from whale.protocols import Briefed, Domain, Engine, Proposer, Trainer
from whale.run import Run
from whale.smoke import smoke_run
from whale.store import Store
from whale.types import SPLITS, Split, Task


def build_run(config: RunConfig, store: Store, progress: Progress | None = None) -> Run:
    """Assemble a run. Raises ConfigError, DomainError or EngineError with the way out."""
    progress = progress or Progress()
    domain = domain_of(config)
    tasks = load_tasks(config, domain)
    proposer = _proposer(config, domain, tasks["search"], progress)
    engine, trainer = load_policy(config)
    return Run(
        config=config, store=store, archive=Archive(store.folder / "candidates"), domain=domain, engine=engine,
        trainer=trainer, proposer=proposer, tasks=tasks, progress=progress,
    )  # fmt: skip


def domain_of(config: RunConfig) -> Domain:
    """The recipe's domain with what it needs to know of the run. Raises ConfigError or DomainError."""
    section = config.domain
    return load_domain(section.name, section.options, config.harness.isolation, _tokenizer(config))


def _tokenizer(config: RunConfig) -> Path | None:
    """The policy's tokenizer file; ``None`` for the fake engine and for models without one."""
    if config.engine.kind != "transformers":
        return None
    file = resolve(config.model) / "tokenizer.json"
    return file if file.is_file() else None


def load_tasks(config: RunConfig, domain: Domain) -> dict[Split, list[Task]]:
    """All splits, checked: disjoint by content, unique ids, and large enough for what the recipe asks."""
    tasks = {split: list(domain.tasks(split)) for split in SPLITS}
    check_disjoint(tasks)
    for split, need, key in (
        ("weights", config.weights.tasks_per_step, "weights.tasks_per_step"),
        ("search", config.search.tasks, "search.tasks"),
        ("test", max(config.eval.tasks, 1), "eval.tasks"),
    ):
        have = len(tasks[split])  # type: ignore[index]
        if have < need:
            raise DomainError(
                f"split {split} of {domain.name} has {have} tasks, {key} asks for {need}; lower {key} or add tasks"
            )
    return tasks


def load_policy(config: RunConfig) -> tuple[Engine, Trainer]:
    """The engine and the trainer on their shared weights."""
    if config.engine.kind != ("fake" if config.trainer.kind == "fake" else "transformers"):
        raise ConfigError(
            f"engine.kind {config.engine.kind!r} and trainer.kind {config.trainer.kind!r} do not share weights"
        )
    if config.engine.kind == "fake":
        from whale.testing import FakeEngine, FakeTrainer, FakeWeights

        weights = FakeWeights()
        return FakeEngine(weights), FakeTrainer(weights)
    from whale.engines.adapters import Adapter  # heavy: torch and transformers
    from whale.engines.local_model import LocalModel
    from whale.engines.transformers import TransformersEngine
    from whale.renderers import for_tokenizer
    from whale.trainers.torch import Adam, TorchTrainer

    section = config.trainer
    adapter = None
    if section.lora_rank:
        adapter = Adapter(section.lora_rank, section.lora_alpha, section.lora_targets, config.seed)
    model = LocalModel(
        config.model, device=config.engine.device, dtype=config.engine.dtype, threads=config.engine.threads or None,
        adapter=adapter,
    )  # fmt: skip
    adam = Adam(
        lr=section.lr,
        betas=section.betas,
        weight_decay=section.weight_decay,
        warmup_steps=section.warmup_steps,
        clip=section.clip,
    )
    renderer = for_tokenizer(model.tokenizer, config.engine.history, config.engine.thinking)
    engine = TransformersEngine(
        model, renderer=renderer, wave_rows=config.engine.wave_rows, keep_bytes=config.engine.keep_mb << 20
    )
    trainer = TorchTrainer(
        model, adam, token_budget=section.token_budget, max_logprob_gap=section.max_logprob_gap, packing=section.packing
    )
    return engine, trainer


def check_proposer(config: RunConfig) -> str:
    """Find what the recipe's proposer lacks (a program, a key, a writable place) before anything is paid.

    Returns a warning or ``""``. Raises ConfigError, ProposerError with the way out. A recipe that never searches
    needs no proposer.
    """
    settings = config.search.proposer
    if settings.kind == "catalogue" or config.schedule.kind == "weight_only":
        return ""
    if config.harness.isolation != "sealed":
        raise ConfigError(
            f"search.proposer.kind {settings.kind!r} writes code, which must run sealed; harness.isolation is "
            f"{config.harness.isolation!r}: set it to sealed (`whale doctor` says what that needs), or use "
            "search.proposer.kind=catalogue"
        )
    return worker_of(settings).check()


def _proposer(config: RunConfig, domain: Domain, search: Sequence[Task], progress: Progress) -> Proposer:
    if config.search.proposer.kind == "catalogue":
        catalogue = domain.catalogue()
        if catalogue is None:
            raise ConfigError(f"search.proposer.kind: domain {domain.name!r} has no catalogue; choose another proposer")
        return CatalogueProposer(catalogue)

    def check(source: str) -> str | None:
        try:
            check_source(source, domain.allowed_imports)
        except HarnessError as error:
            return str(error)
        return smoke_run(domain, make_candidate(0, source), config.limits, config.harness.isolation)

    skill = domain.skill() if isinstance(domain, Briefed) else GENERAL_SKILL
    visible = [task.id for task in search[: config.search.tasks]]
    worker = worker_of(config.search.proposer, check, progress.note)
    return AgenticProposer(worker, skill, visible, progress.note)
