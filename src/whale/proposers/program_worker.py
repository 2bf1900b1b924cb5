"""A proposer that is a command line program: found, shut in, given the task, watched, and read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from whale.config import ProposerConfig
from whale.errors import ProposerError
from whale.proposers.isolation import Cell, check_writable, level, places_of
from whale.proposers.process import Run, run_program
from whale.proposers.programs import PROGRAMS, Said, json_objects, tail
from whale.proposers.scratch import OUTBOX, Scratch
from whale.proposers.session import SESSION_LOG, Ended, Worked
from whale.proposers.workplace import workplace

_PASSED_ON = (
    "LANG", "LC_ALL", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
)  # fmt: skip
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS")
_OF_THE_USER = ("USER", "LOGNAME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")  # without a sandbox only
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


class ProgramWorker:
    """Implements ``session.Worker`` with a program of ``programs.PROGRAMS``. say: takes lines for a person."""

    def __init__(self, settings: ProposerConfig, say: Callable[[str], None] = lambda line: None) -> None:
        self.name: str = settings.kind
        self.seconds = settings.seconds
        self._settings = settings
        self._program = PROGRAMS[settings.kind]
        self._say = say

    def check(self) -> str:
        """Try what a session needs. Raises ProposerError: no program, no key or login, no sandbox, nothing writable.
        Returns a warning where the program will run without a sandbox."""
        self._find()
        self._check_login()
        with workplace() as base:
            scratch = Scratch(base / "scratch")
            (scratch.folder / OUTBOX).mkdir(parents=True)
            cell = self._cell(scratch)
            check_writable(cell)
        if cell.sealed:
            return ""
        return (
            f"the proposer's program {self._find()} runs without a sandbox and can read and change what you can "
            "(search.proposer.isolation); its proposals are marked proposer_isolation: none"
        )

    def work(self, scratch: Scratch, task: str, log: Path) -> Worked:
        """One run of the program, its output kept as ``session.jsonl`` in ``log``."""
        cell = self._cell(scratch)
        output = log / SESSION_LOG
        argv = [self._find(), *self._program.argv(self._settings, scratch, cell.sealed)]
        done = run_program(
            cell.command(argv),
            folder=scratch.folder,
            environment=cell.environment,
            text=task,
            log=output,
            seconds=self.seconds,
            heartbeat=self._settings.heartbeat,
            beat=lambda seconds: self._beat(seconds, output, scratch),
        )
        if cell.sealed:
            self._keep_logins(cell.home)
        said = self._program.read(output, scratch)
        return Worked(
            ended=_ended(done, said),
            isolation="sealed" if cell.sealed else "none",
            calls=said.calls,
            turns=said.turns,
            tokens=said.tokens,
            money=said.money,
            session=said.session,
            detail=_detail(done, said, tail(output.with_suffix(".err"))),
        )

    def _beat(self, seconds: float, output: Path, scratch: Scratch) -> None:
        calls = self._program.read(output, scratch).calls
        files = sum(1 for _ in scratch.outbox.glob("*/harness.py"))
        self._say(f"proposer {self.name}: {seconds:.0f} s, {calls} tool calls, {files} files so far")

    def _find(self) -> str:
        wanted = self._settings.program or self._program.default
        found = shutil.which(wanted)
        if found is None:
            way = self._program.install or "install it"
            raise ProposerError(
                f"search.proposer.kind is {self.name}, but the program {wanted!r} is not found or cannot be executed; "
                f"{way}, or give its path as search.proposer.program"
            )
        return str(Path(found).absolute())

    def _key_variable(self) -> str:
        return self._settings.key_variable or self._program.key

    def _check_login(self) -> None:
        variable = self._key_variable()
        ways = (variable, *self._program.other_keys)
        if not variable or any(os.environ.get(name) for name in ways) or self._logins():
            return
        raise ProposerError(
            f"search.proposer: {self.name} has neither a key in the environment variable {variable} nor a login; "
            f"set {variable}, or {self._program.login or 'name another variable in search.proposer.key_variable'}"
        )

    def _logins(self) -> list[tuple[Path, str]]:
        """Credential files that exist, with their places below a home folder."""
        moved = os.environ.get(self._program.home_variable) if self._program.home_variable else None
        found = []
        for name in (*self._program.credentials, *self._settings.credentials):
            path = Path.home() / name
            if moved and name in self._program.credentials:
                path = Path(moved) / Path(*Path(name).parts[1:])
            if path.is_file():
                found.append((path, name))
        return found

    def _cell(self, scratch: Scratch) -> Cell:
        sealed = level(self._settings.isolation) == "sealed"
        home = scratch.folder.parent / "home"
        home.mkdir(exist_ok=True)
        environment = self._environment()
        if not sealed:
            own = {
                name: os.environ[name] for name in (*_OF_THE_USER, self._program.home_variable) if name in os.environ
            }
            return Cell(scratch, home, (), {**environment, **own, "HOME": str(Path.home())}, sealed)
        for path, name in self._logins():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, home / name)
            (home / name).chmod(0o600)
        shown = [Path(environment[name]) for name in _CERTIFICATES if name in environment]
        shown += [Path(name).expanduser() for name in self._settings.visible]
        found = places_of(self._find(), os.environ.get("PATH", _SYSTEM_PATH))
        return Cell(scratch, home, (*found, *shown), {**environment, "HOME": str(home)}, sealed)

    def _environment(self) -> dict[str, str]:
        names = (*_PASSED_ON, *self._program.other_keys, *self._program.variables, *self._settings.variables)
        given = {name: os.environ[name] for name in names if name in os.environ}
        key = os.environ.get(self._key_variable()) if self._key_variable() else None
        if key:
            given[self._program.key or self._key_variable()] = key
        path = os.pathsep.join([str(Path(self._find()).parent), os.environ.get("PATH", ""), _SYSTEM_PATH])
        return {**given, "PATH": path, "TERM": "dumb"}

    def _keep_logins(self, home: Path) -> None:
        """Copy back a login that the program renewed, or the one outside would be worth nothing."""
        for path, name in self._logins():
            inside = home / name
            if name in self._program.credentials[:1] and inside.is_file() and not inside.is_symlink():
                text = inside.read_bytes()
                if text != path.read_bytes() and any(json_objects(inside)):  # whole, not torn
                    temporary = path.with_name(path.name + ".whale")
                    temporary.write_bytes(text)
                    temporary.chmod(0o600)
                    temporary.rename(path)


def _ended(done: Run, said: Said) -> Ended:
    if done.timed_out:
        return "timeout"
    if done.flooded or said.limit:
        return "limit"
    return "ended" if done.code == 0 else "error"


def _detail(done: Run, said: Said, complaints: str) -> str:
    status = "killed at its time limit" if done.timed_out else f"exit status {done.code}"
    return "; ".join(part for part in (said.detail, status, complaints) if part)
