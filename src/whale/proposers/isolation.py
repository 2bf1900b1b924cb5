"""Shuts a proposer's program in: it sees the scratch copy, itself, a private home, the system's programs, the network.

Not in sight: the run folder, data, other homes, other processes, variables of the host. Only the outbox and the private
home can be written to. Where bubblewrap does not start, a program runs without (``none``) and its proposals say so.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from whale.errors import ProposerError
from whale.harness.sandbox import ALLOW_NAMESPACES, INSTALL_BWRAP
from whale.proposers.scratch import Scratch

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store")
# Names, addresses, certificates and the loader's tables; nothing else of /etc.
_ETC = (
    "ca-certificates", "ssl", "pki", "crypto-policies", "alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "nsswitch.conf", "hosts", "host.conf", "gai.conf", "passwd", "group", "localtime", "mime.types",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "urandom", "random")
_PROBE_SECONDS = 20


@dataclass(frozen=True)
class Cell:
    """A place to run a program in. home: a private home folder. places: files and folders that are shown read-only
    beside the system's. environment: all of it. sealed: False runs the program as it is."""

    scratch: Scratch
    home: Path
    places: tuple[Path, ...]
    environment: Mapping[str, str]
    sealed: bool

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs ``argv`` in here."""
        if not self.sealed:
            return list(argv)
        # The environment is that of the process: as options of bwrap keys could be read by everybody.
        options = [*_namespaces(), *_system()]
        options += ["--tmpfs", "/tmp", "--tmpfs", "/dev/shm", *_devices(), *_names()]
        for place in self.places:
            options += ["--ro-bind-try", str(place), str(place)]
        options += ["--ro-bind", str(self.scratch.folder), str(self.scratch.folder)]
        options += ["--bind", str(self.scratch.outbox), str(self.scratch.outbox)]
        options += ["--bind", str(self.home), str(self.home), "--chdir", str(self.scratch.folder)]
        return [*options, "--", *argv]


def level(wanted: str) -> str:
    """``sealed`` or ``none``, whichever a session will have under ``search.proposer.isolation``.

    Raises ProposerError with the way out if ``sealed`` is asked for and cannot be had."""
    if wanted == "none":
        return "none"
    problem = _problem()
    if problem is None:
        return "sealed"
    if wanted == "sealed":
        raise ProposerError(
            f"search.proposer.isolation is sealed, but {problem}; mend that, or set search.proposer.isolation=none "
            "to run the proposer's program with all your rights"
        )
    return "none"


def check_writable(cell: Cell) -> None:
    """Write and remove a probe file where a program will write. Raises ProposerError with the way out."""
    probe = cell.scratch.outbox / "probe"
    argv = ["/bin/sh", "-c", f"echo probe > '{probe}'"]
    done = _try(cell.command(argv), cell.environment)
    if done or not probe.exists():
        raise ProposerError(
            f"search.proposer: a program cannot write to its outbox {cell.scratch.outbox} ({done or 'no file came'}); "
            "point TMPDIR at a folder that may be written to"
        )
    probe.unlink()


@functools.cache
def _problem() -> str | None:
    """Why a sealed cell does not start on this machine, or ``None``."""
    if shutil.which("bwrap") is None:
        return f"the program bwrap is missing: {INSTALL_BWRAP}"
    complaint = _try([*_namespaces(), *_system(), "--", "/bin/sh", "-c", "true"], {})
    return f"bubblewrap does not start ({complaint}): {ALLOW_NAMESPACES}" if complaint else None


def _try(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a short command; ``""`` if it went well, else what it said."""
    try:
        done = subprocess.run(
            argv, env={"PATH": "/usr/bin:/bin", **environment}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=_PROBE_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit status {done.returncode}")[-300:]


def _namespaces() -> list[str]:
    """bubblewrap up to the places it shows. The network is left: a proposer talks to its model over it."""
    return [*_unshared(), "--proc", "/proc"] if _has_proc() else _unshared()


def _unshared() -> list[str]:
    argv = ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    argv += ["--cap-drop", "ALL"] if os.geteuid() == 0 else ["--unshare-user"]
    return [*argv, "--die-with-parent", "--new-session"]


@functools.cache
def _has_proc() -> bool:
    """Whether a /proc of its own can be mounted, which some containers refuse."""
    return not _try([*_unshared(), "--ro-bind", "/", "/", "--proc", "/proc", "--", "/bin/sh", "-c", "true"], {})


def _system() -> list[str]:
    argv: list[str] = []
    for path in _SYSTEM:
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            argv += ["--ro-bind", path, path]
    return argv


def _devices() -> list[str]:
    argv = [word for name in _DEVICES for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")]
    return [*argv, "--symlink", "/proc/self/fd", "/dev/fd"]


def _names() -> list[str]:
    argv = [word for name in _ETC for word in ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")]
    # Often a link into /run, which is not shown.
    return [*argv, "--ro-bind-try", os.path.realpath("/etc/resolv.conf"), "/etc/resolv.conf"]


def places_of(program: str, path: str) -> tuple[Path, ...]:
    """What must be shown for ``program`` to start: its link and file, its packages, and its interpreter.

    path: the search path. Empty for programs of the system. Finds links, npm's and venv's layouts; for others there is
    ``search.proposer.visible``.
    """
    found = shutil.which(program, path=path)
    if found is None:
        return ()
    places = _with_packages(Path(found))
    interpreter = _interpreter(Path(found), path)
    if interpreter is not None:
        places += [interpreter, *_prefixes(interpreter)]
    return tuple(place for place in dict.fromkeys(places) if not place.is_relative_to("/usr"))


def _with_packages(found: Path) -> list[Path]:
    real = Path(os.path.realpath(found))
    places = [found.absolute(), real]
    if "node_modules" in real.parts:
        places.append(Path(*real.parts[: real.parts.index("node_modules") + 1]))
    return places


def _interpreter(program: Path, path: str) -> Path | None:
    """The program named in the first line of a script."""
    with program.open("rb") as file:
        first = file.readline(500)
    if not first.startswith(b"#!"):
        return None
    words = first[2:].decode("utf-8", "replace").split()
    names = [word for word in words[1:] if not word.startswith("-")] if words and words[0].endswith("/env") else words
    found = shutil.which(names[0], path=path) if names else None
    return Path(found).absolute() if found else None


def _prefixes(interpreter: Path) -> list[Path]:
    """Installation folders of an interpreter that has one of its own, as under nvm, pyenv or in a venv."""
    real = Path(os.path.realpath(interpreter))
    shared = {Path("/"), Path("/usr"), Path("/usr/local"), Path.home(), Path.home() / ".local"}
    prefixes = [path.parent.parent for path in (interpreter, real) if path.parent.name == "bin"]
    return [real, *(prefix for prefix in prefixes if prefix not in shared)]
