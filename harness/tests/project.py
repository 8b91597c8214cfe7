"""The project's own files, as the tests of its structure see them."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("reference", "optimized", "harness")


def files(*suffixes, packages=PACKAGES):
    """Every file of the packages with one of the suffixes, as sorted paths relative to the root."""
    return sorted(
        path.relative_to(ROOT)
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.suffix in suffixes
    )


def text(path):
    return (ROOT / path).read_text(encoding="utf-8")


def tree(path):
    return ast.parse(text(path), filename=str(path))


def imports(path):
    """Dotted names that a Python file imports, wherever in it; `from a import b` counts as a.b."""
    package = path.parent.parts
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            yield from (f"{base}.{alias.name}" for alias in node.names)
