"""Starts the warm parent at one of three levels of isolation, and ends it without a trace.

``sealed``: bubblewrap; the interpreter, its standard library and the runtime file are all there is to see.
``contained``: an ordinary process with limits, no capabilities and (on Linux) the system-call filter.
``off``: an ordinary process, for debugging. What each level closes and what it leaves open: docs/security.md.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from whale.errors import SandboxError
from whale.harness import runtime

LEVELS = ("sealed", "contained", "off")

UNPRIVILEGED_UID = 61234  # an account nobody has; a root host becomes it inside the sandbox
_RUNTIME_INSIDE = "/whale/runtime.py"
_PACKAGES_INSIDE = "/whale/packages"
# -s -S: no site-packages; -P: the runtime's folder is no place to import from; -B: no byte-code cache. Not -I, which
# would ignore PYTHONHASHSEED and make the order of sets, and so a harness, differ from start to start.
_FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}

INSTALL_BWRAP = "install bubblewrap (`apt-get install bubblewrap`, `dnf install bubblewrap`)"
ALLOW_NAMESPACES = (
    "allow unprivileged user namespaces (`sysctl -w kernel.unprivileged_userns_clone=1`, on Ubuntu 24.04 "
    "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`; in a container: run it with "
    "`--security-opt seccomp=unconfined` or `--privileged`), or use isolation: contained"
)


@dataclass(frozen=True)
class Check:
    """One thing that ``probe`` tried inside a real sandbox. fix: what to do if it is not ok (else empty)."""

    name: str
    ok: bool
    detail: str = ""
    fix: str = ""


@dataclass
class Sandbox:
    """A started warm parent. control: the host's end of its socket, non-blocking."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    errors: IO[bytes]

    def complaint(self) -> str:
        """What the process wrote to its standard error, at most 2,000 characters from the end."""
        self.errors.seek(0)
        return self.errors.read()[-2000:].decode("utf-8", "replace").strip()

    def close(self, patience: float = 5.0) -> None:
        """Hang up (the parent then kills and reaps its forks), wait, and kill the group if that did not do.

        Blocks for at most ``patience`` seconds and then some. Safe to call twice."""
        self.control.close()
        try:
            self.process.wait(patience)
            kill = sys.platform != "linux"  # on Linux every fork dies with its parent by the kernel's hand
        except subprocess.TimeoutExpired:
            kill = True
        if kill:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if not self.errors.closed:
            self.errors.close()


def start(level: str, packages: Iterable[str] = ()) -> tuple[Sandbox, dict[str, str]]:
    """Start a warm parent that waits for its setup.

    packages: names of installed packages that code inside may import. Returns the sandbox and the folder of each
    package as seen inside. Raises SandboxError with the way out if the level cannot be had on this machine.
    """
    places = {name: _place(name) for name in packages}
    host, inside = socket.socketpair()
    with inside:
        argv, seen = _command(level, inside.fileno(), places)
        errors = tempfile.TemporaryFile()  # noqa: SIM115 (the Sandbox closes it)
        try:
            process = subprocess.Popen(
                argv,
                pass_fds=[inside.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            host.close()
            errors.close()
            raise SandboxError(f"the sandbox process could not be started: {error}") from error
    host.setblocking(False)
    return Sandbox(process, host, errors), seen


def _command(level: str, control: int, places: Mapping[str, Path]) -> tuple[list[str], dict[str, str]]:
    if level not in LEVELS:
        raise SandboxError(f"isolation {level!r} is not known; use one of {', '.join(LEVELS)}")
    if level != "sealed":
        program = [_interpreter(), *_FLAGS, str(Path(runtime.__file__).resolve()), str(control), "0"]
        return program, {name: str(path.parent) for name, path in places.items()}
    seen = {name: f"{_PACKAGES_INSIDE}/{path.name}" for name, path in places.items()}
    binds = [arg for name, path in places.items() for arg in ("--ro-bind", str(path), seen[name])]
    binds = [*_folders([_PACKAGES_INSIDE + "/x"]), *binds]
    uid = UNPRIVILEGED_UID if os.geteuid() == 0 else 0
    program = [_interpreter(), *_FLAGS, _RUNTIME_INSIDE, str(control), str(uid)]
    return [*_bubblewrap(), *binds, *_READ_ONLY, "--", *program], dict.fromkeys(places, _PACKAGES_INSIDE)


# Nothing is writable, so nothing can be carried from one rollout to the next. There is no /proc: no program inside
# needs it, and without it a rollout cannot so much as name another.
_READ_ONLY = ("--tmpfs", "/tmp", "--remount-ro", "/tmp", "--remount-ro", "/", "--chdir", "/")


def _bubblewrap() -> list[str]:
    """The command line up to the places that differ: namespaces, environment, and every file there is to see."""
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxError(
            f"isolation sealed needs the program bwrap: {INSTALL_BWRAP}; or set isolation: contained, which limits "
            "processes but does not hide files (docs/security.md)"
        )
    argv = [program, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() == 0:
        # A root host needs no user namespace; it keeps just what the runtime takes to stop being root.
        argv += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        argv += ["--unshare-user"]
    argv += ["--die-with-parent", "--new-session", "--clearenv"]
    argv += [word for name, value in _ENVIRONMENT.items() for word in ("--setenv", name, value)]
    argv += _folders([*_visible(), _RUNTIME_INSIDE])
    for path in _visible():
        argv += ["--ro-bind", path, path]
    for hidden in _third_party():
        argv += ["--tmpfs", hidden, "--remount-ro", hidden]
    argv += ["--ro-bind", str(Path(runtime.__file__).resolve()), _RUNTIME_INSIDE]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"):
        argv += ["--dev-bind", device, device]
    return argv


def _folders(paths: Iterable[str]) -> list[str]:
    """Make the folders above ``paths`` so that everybody may pass; left to itself bwrap makes some for root only."""
    folders = {str(folder) for path in paths for folder in Path(path).parents} - {"/"}
    return [word for folder in sorted(folders) for word in ("--perms", "0755", "--dir", folder)]


def _interpreter() -> str:
    """The real interpreter, not a virtual environment's link to it."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def _standard_library() -> list[str]:
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    base |= {"installed_base": sys.base_prefix, "installed_platbase": sys.base_exec_prefix}
    return sorted({sysconfig.get_path(key, vars=base) for key in ("stdlib", "platstdlib")})


@functools.cache
def _visible() -> tuple[str, ...]:
    """Interpreter, standard library and the shared libraries they load, found by loading them once."""
    argv = [_interpreter(), *_FLAGS, str(Path(runtime.__file__).resolve()), "libraries"]
    result = subprocess.run(argv, capture_output=True, env=_ENVIRONMENT, cwd="/", timeout=60, check=False)
    if result.returncode != 0:
        raise SandboxError(f"cannot list the interpreter's libraries: {result.stderr.decode()[-500:]}")
    folders = _standard_library()
    libraries = [p for p in json.loads(result.stdout) if not p.startswith(tuple(f + "/" for f in folders))]
    return tuple(path for path in dict.fromkeys([_interpreter(), *folders, *libraries]) if os.path.exists(path))


def _third_party() -> list[str]:
    """Folders inside the standard library that hold installed packages; they are covered up."""
    folders = [Path(f, name) for f in _standard_library() for name in ("site-packages", "dist-packages")]
    return [str(folder) for folder in folders if folder.is_dir()]


def _place(name: str) -> Path:
    """Folder or file of an installed top-level package; finding it does not import it."""
    spec = importlib.util.find_spec(name) if name.isidentifier() and name != "whale" else None
    if spec is None:
        raise SandboxError(f"the package {name!r} that harnesses are allowed to import is not installed")
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin or "")


def way_out(level: str, complaint: str) -> str:
    """A message for a sandbox that did not start: what happened and what to do about it."""
    reason = complaint.splitlines()[-1] if complaint else "no message"
    if level == "sealed":
        return f"the sealed sandbox did not start ({reason}); {ALLOW_NAMESPACES}"
    return f"the {level} sandbox did not start ({reason})"


def probe(level: str) -> list[Check]:
    """Start a real sandbox at ``level`` and try, from inside, what must not work. Raises nothing on purpose."""
    from whale.harness.probe import run_checks  # it stands on top of this module

    return run_checks(level)
