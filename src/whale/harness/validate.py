"""Reads a harness file without running it: is it one, and does it keep to the rules?

These checks give early and readable errors. They are no wall: Python can be written around any of them, and what
such code can reach is decided by the sandbox alone.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator

from whale.errors import HarnessError
from whale.harness.runtime import STANDARD_IMPORTS

MAX_SOURCE_BYTES = 64 * 1024
"""Size of a harness file at most, in bytes of UTF-8."""

_OWN = "whale.harness"
_REFUSED_NAMES = frozenset(
    """
    __import__ eval exec compile open input breakpoint globals locals vars delattr __builtins__ __loader__
    """.split()  # noqa: SIM905
)
_ATTRIBUTE_CALLS = frozenset({"getattr", "setattr", "hasattr"})
_ALLOWED_DUNDERS = frozenset(
    """
    __init__ __post_init__ __name__ __doc__ __str__ __repr__ __eq__ __hash__ __lt__ __le__ __gt__ __ge__ __len__
    __iter__ __next__ __contains__ __getitem__ __setitem__ __call__ __bool__ __enter__ __exit__ __aenter__ __aexit__
    __slots__ __all__ __add__ __sub__ __mul__ __annotations__ __future__
    """.split()  # noqa: SIM905
)


def check_source(source: str, allowed_imports: Iterable[str] = ()) -> None:
    """Raise HarnessError, naming line and problem, unless ``source`` is an acceptable harness file.

    allowed_imports: top-level modules beyond ``STANDARD_IMPORTS`` and ``whale.harness``. All problems of the first
    kind found are reported together.
    """
    size = len(source.encode("utf-8", "replace"))
    if size > MAX_SOURCE_BYTES:
        raise HarnessError(f"the file has {size} bytes; at most {MAX_SOURCE_BYTES} are accepted")
    tree = _parse(source)
    problems = sorted(_problems(tree, STANDARD_IMPORTS | frozenset(allowed_imports)))
    problems = problems or list(_contract(tree)) or list(_compiler_errors(source))
    if problems:
        raise HarnessError("; ".join(f"line {line}: {text}" for line, text in problems[:5]))


def source_hash(source: str) -> str:
    """Names a harness everywhere: 16 hex digits of the SHA-256 of the exact text."""
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def code_hash(source: str) -> str:
    """Equal for files that differ only in comments, docstrings, blank lines and formatting: 16 hex digits.

    Raises HarnessError if the source is not Python.
    """
    tree = _parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            # An empty body and one with a lone `pass` do the same.
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _parse(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise HarnessError(f"line {error.lineno or 1}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise HarnessError(f"line 1: the file cannot be parsed ({type(error).__name__}: {error})") from None


def _compiler_errors(source: str) -> Iterator[tuple[int, str]]:
    """What the grammar lets through and the compiler does not, such as ``await`` outside an async function."""
    try:
        compile(source, "harness.py", "exec", dont_inherit=True)
    except SyntaxError as error:
        yield error.lineno or 1, error.msg
    except (ValueError, RecursionError, MemoryError) as error:
        yield 1, f"the file cannot be compiled ({type(error).__name__}: {error})"


def _problems(tree: ast.Module, allowed: frozenset[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, text) for text in _bad_imports(node, allowed))
        elif isinstance(node, ast.Name) and node.id in _REFUSED_NAMES:
            yield node.lineno, f"{node.id} is not for harnesses (no dynamic code, imports or files)"
        elif isinstance(node, ast.Attribute) and _is_dunder(node.attr):
            yield node.lineno, f"attribute {node.attr} is not for harnesses"
        elif isinstance(node, ast.Call) and _reaches_dunder(node):
            yield node.lineno, "getattr and its kin need a plain name that is written out"


def _bad_imports(node: ast.Import | ast.ImportFrom, allowed: frozenset[str]) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.level:
        yield "relative import: a harness is one self-contained file"
        return
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    for name in names:
        if name != _OWN and name.split(".")[0] not in allowed:
            yield f"import of {name} is not allowed; allowed are {_OWN} and {', '.join(sorted(allowed))}"


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in _ALLOWED_DUNDERS


def _reaches_dunder(call: ast.Call) -> bool:
    if not (isinstance(call.func, ast.Name) and call.func.id in _ATTRIBUTE_CALLS and len(call.args) > 1):
        return False
    name = call.args[1]
    if isinstance(name, ast.Constant):
        return not isinstance(name.value, str) or _is_dunder(name.value)
    # Tools are picked by name all the time: getattr(session.tools, name).
    target = call.args[0]
    return not (isinstance(target, ast.Attribute) and target.attr == "tools")


def _contract(tree: ast.Module) -> Iterator[tuple[int, str]]:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Harness"]
    if not classes:
        yield 1, "the file defines no class Harness"
        return
    harness = classes[-1]
    runs = [n for n in harness.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == "run"]
    if not runs:
        if not harness.bases:  # an inherited run is found when the file is loaded
            yield harness.lineno, "class Harness has no `async def run(self, task, session)`"
        return
    if not isinstance(runs[-1], ast.AsyncFunctionDef):
        yield runs[-1].lineno, "Harness.run must be `async def run(self, task, session)`"
    elif not _takes_two(runs[-1].args):
        yield runs[-1].lineno, "Harness.run must take (self, task, session)"


def _takes_two(args: ast.arguments) -> bool:
    positional = len(args.posonlyargs) + len(args.args)
    required = positional - len(args.defaults)
    needs_more = any(default is None for default in args.kw_defaults)
    return not needs_more and required <= 3 and (positional >= 3 or args.vararg is not None)
