"""Tries a level of isolation from inside, the way ``whale doctor`` shows it."""

from __future__ import annotations

import asyncio
import json

from whale.errors import WhaleError
from whale.harness.interpreter import PythonPool
from whale.harness.sandbox import ALLOW_NAMESPACES, INSTALL_BWRAP, Check

# Every door gets one try; what comes back is {name: "closed: why" or "open: what was seen"}.
_TRIES = """
import json, os, sys
def attempt(action):
    try:
        return "open: " + str(action())[:200]
    except BaseException as error:
        return f"closed: {type(error).__name__}"
def network():
    import socket
    return socket.create_connection(("127.0.0.1", 9), 0.2) if socket.socket() else ""
def environment():
    extra = sorted(set(os.environ) - {"PATH", "LANG", "PYTHONHASHSEED", "PWD", "LC_CTYPE"})
    if not extra: raise KeyError
    return extra
def writable():
    for folder in ("/tmp", "/dev/shm", "/var/tmp", "/", os.getcwd(), os.path.expanduser("~")):
        try:
            open(os.path.join(folder, "whale-probe"), "w").close()
        except OSError:
            continue
        os.unlink(os.path.join(folder, "whale-probe"))
        return folder
    raise PermissionError
def project():
    import whale.types
    return whale.types
def packages():
    import numpy
    return numpy
def processes():
    return os.fork()
def files():
    seen = set(os.listdir("/")) - {"dev", "lib", "lib64", "root", "tmp", "usr", "whale", "home", "opt", "nix"}
    if not seen: raise FileNotFoundError
    return sorted(seen)
print(json.dumps({name: attempt(globals()[name]) for name in WANTED}))
"""

_EXPLAINED = {
    "network": "no network",
    "environment": "no environment variables of the host",
    "writable": "no writable file",
    "project": "no project module can be imported",
    "packages": "no installed package can be imported",
    "processes": "no second process",
    "files": "no files but interpreter, standard library and runtime",
}
_CLOSED_AT = {
    "sealed": tuple(_EXPLAINED),
    "contained": ("network", "environment", "writable", "project", "packages", "processes"),
    "off": (),
}


def run_checks(level: str) -> list[Check]:
    """Start a sandbox at ``level`` and try the doors that the level closes; one Check each."""
    try:
        answers = asyncio.run(_ask(level))
    except WhaleError as error:
        fix = INSTALL_BWRAP if "needs the program bwrap" in str(error) else ALLOW_NAMESPACES
        return [Check(f"{level}: starts", False, str(error), fix)]
    checks = [Check(f"{level}: starts", True)]
    for name in _CLOSED_AT.get(level, ()):
        answer = answers.get(name, "open: no answer")
        closed = answer.startswith("closed")
        fix = "" if closed else "report this: the sandbox leaks on this machine; see docs/security.md"
        checks.append(Check(f"{level}: {_EXPLAINED[name]}", closed, answer, fix))
    return checks


async def _ask(level: str) -> dict[str, str]:
    code = f"WANTED = {list(_CLOSED_AT.get(level, ()))!r}\n{_TRIES}"
    async with PythonPool(1, level, seconds=10) as pool:
        text = await pool.run(code)
    try:
        answers: dict[str, str] = json.loads(text)
    except ValueError:
        return {"": text}
    return answers
