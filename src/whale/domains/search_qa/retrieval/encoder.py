"""Sentence encoders: where they lie, which prompts they want, and texts turned into unit vectors."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from whale.domains.search_qa.retrieval.base import RetrievalError, needs_extra

Side = Literal["query", "passage"]
Vectors = NDArray[np.float32]

E5_PROMPTS: Mapping[Side, str] = {"query": "query: ", "passage": "passage: "}
_STORED: Mapping[Side, tuple[str, ...]] = {"query": ("query",), "passage": ("document", "passage", "corpus")}
_E5 = re.compile(r"(?:^|[-_/])e5(?:[-_]|$)")
_WEIGHTS = (".safetensors", ".bin")


def find_encoder(name: str) -> Path:
    """Folder of an encoder: a path, or a hub id whose files are on this machine. Raises RetrievalError."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.count("/") == 1 and not name.startswith((".", "~", "/")):
        try:
            from huggingface_hub import snapshot_download

            return Path(snapshot_download(name, local_files_only=True))
        except ImportError as error:
            raise needs_extra("sentence-transformers", "dense") from error
        except (OSError, ValueError) as error:
            raise RetrievalError(
                f"encoder: {name!r} is not on this machine; fetch it with: whale models pull {name}"
            ) from error
    raise RetrievalError(f"encoder: there is no folder {name}; give a folder or a hub id such as intfloat/e5-base-v2")


def encoder_digest(folder: Path) -> str:
    """12 hex digits over names and contents of the files that make the vectors."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (*_WEIGHTS, ".json", ".txt", ".model") and path.is_file():
            with path.open("rb") as handle:
                digest = hashlib.file_digest(handle, "sha256").hexdigest()
            total.update(f"{path.relative_to(folder)}\0{digest}\n".encode())
    return total.hexdigest()[:12]


def weight_bytes(folder: Path) -> int:
    """Size of the largest set of weights in the folder: what loading the encoder takes in memory, about."""
    sizes = [sum(path.stat().st_size for path in folder.rglob(f"*{suffix}")) for suffix in _WEIGHTS]
    return max(sizes)


def read_dimension(folder: Path) -> int | None:
    """Length of the encoder's vectors as its files say, without loading it; ``None`` if they do not."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        modules = [{"path": "", "type": "Transformer"}]
    found: int | None = None
    for module in modules:
        part = folder / module.get("path", "")
        found = _module_dimension(part, module.get("type", "").rsplit(".", 1)[-1], found)
    return found


def _module_dimension(folder: Path, kind: str, before: int | None) -> int | None:
    if kind == "StaticEmbedding":
        return _table_width(folder / "model.safetensors")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return before
    if kind == "Pooling":
        modes = sum(value is True for key, value in config.items() if key.startswith("pooling_mode_"))
        return before * modes if before and modes > 1 else before
    keys = ("out_features",) if kind == "Dense" else ("hidden_size", "d_model", "n_embd", "dim")
    return next((config[key] for key in keys if isinstance(config.get(key), int)), before)


def _table_width(path: Path) -> int | None:
    try:
        with path.open("rb") as handle:
            header = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))
    except (OSError, ValueError, MemoryError):
        return None
    shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__" and len(entry["shape"]) == 2]
    return int(shapes[0][1]) if len(shapes) == 1 else None


def choose_prompt(side: Side, given: str | None, stored: Mapping[str, str], name: str) -> str:
    """The one text put before every query or passage.

    given: by the user, stands above all (empty: none). stored: in the encoder; where it has one for either side, it
    knows what it wants. name: of the encoder; E5 models without stored prompts get ``query: `` and ``passage: ``,
    but not the instruct ones, which want a sentence of your own.
    """
    if given is not None:
        return given
    known = {key: next((stored[n] for n in names if stored.get(n)), "") for key, names in _STORED.items()}
    if any(known.values()):
        return known[side]
    return E5_PROMPTS[side] if is_e5(name) else ""


def is_e5(name: str) -> bool:
    """Whether a hub id or a folder name is one of the E5 family with the two short prefixes."""
    last = name.rstrip("/").split("/snapshots/")[0].rsplit("/", 1)[-1].lower()
    return bool(_E5.search(last)) and "instruct" not in last and "mistral" not in last


class Encoder:
    """A sentence-transformers model, loaded. dim: length of its vectors. prompts: the texts it puts before each side.

    Raises RetrievalError: not installed, or not a model it can load.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        prompts: Mapping[Side, str | None],
        max_length: int | None = None,
        device: str = "",
        batch: int = 64,
    ) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise needs_extra("sentence-transformers", "dense") from error
        try:
            # Only files of this folder: a search must not turn into a download.
            self._model: Any = SentenceTransformer(str(folder), device=device or None, local_files_only=True)
        except Exception as error:  # the library raises whatever its parts raise
            raise RetrievalError(f"encoder {name} cannot be loaded: {type(error).__name__}: {error}") from error
        if max_length is not None:
            self._model.max_seq_length = min(max_length, self._model.max_seq_length or max_length)
        self._batch = batch
        self._name = name
        stored = {key: value for key, value in dict(self._model.prompts or {}).items() if isinstance(value, str)}
        sides: tuple[Side, ...] = ("query", "passage")
        self.prompts = {side: choose_prompt(side, prompts.get(side), stored, name) for side in sides}
        self.dim = int(self.encode(["dimension"], "query").shape[1])

    def encode(self, texts: Sequence[str], side: Side) -> Vectors:
        """Unit vectors of ``texts``, (texts, dim) in float32. Raises RetrievalError for numbers that are not finite."""
        encode = self._model.encode_query if side == "query" else self._model.encode_document
        # An explicit prompt, even an empty one, replaces the stored one: it is never put there twice.
        vectors = encode(
            list(texts),
            prompt=self.prompts[side],
            batch_size=self._batch,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        result: Vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if not np.isfinite(result).all():
            raise RetrievalError(f"encoder {self._name} gives vectors that are not finite; its files may be damaged")
        return result
