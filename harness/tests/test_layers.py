"""Who may import whom, so that parity between the packages cannot be faked."""

import ast
import re
import sys

import pytest

from harness.tests.project import PACKAGES, files, imports, text, tree

ALLOWED = {
    "reference": ("reference",),
    "optimized": ("optimized", "reference.formats", "reference.tensors", "reference.quantizers"),
    "harness": PACKAGES,
}


def allowed(path):
    return (*ALLOWED[path.parts[0]], *(["reference.ops"] if str(path) == "optimized/ops.py" else []))


def inside(name, modules):
    return any(name == module or name.startswith(f"{module}.") for module in modules)


@pytest.mark.parametrize("path", files(".py"), ids=str)
def test_imports_within_the_project(path):
    ours = [name for name in imports(path) if inside(name, PACKAGES)]
    assert [name for name in ours if not inside(name, allowed(path))] == []


@pytest.mark.parametrize("path", files(".py", packages=("reference",)), ids=str)
def test_reference_needs_only_pytorch(path):
    known = {*sys.stdlib_module_names, "torch", "reference"}
    assert [name for name in imports(path) if name.split(".")[0] not in known] == []


@pytest.mark.parametrize("path", files(".py", packages=("reference", "optimized")), ids=str)
def test_no_import_by_name(path):
    """An import that the rules above cannot see, under its own name or another."""
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
    }
    assert called.isdisjoint({"import_module", "__import__", "exec", "eval"})
    assert [name for name in imports(path) if inside(name, ("importlib", "builtins", "runpy", "pkgutil"))] == []
    assert "sys.modules" not in {ast.unparse(node) for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)}
    assert "sys.modules" not in imports(path)


@pytest.mark.parametrize("path", [path for path in files(".py") if path.name != "__init__.py"], ids=str)
def test_what_is_imported_is_used(path):
    """Or a comment says what it is there for."""
    lines, used, imported = text(path).splitlines(), set(), {}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if "#" not in "".join(lines[node.lineno - 1:node.end_lineno]):
                imported |= {(alias.asname or alias.name).split(".")[0]: node.lineno for alias in node.names}
    said = {word for line in lines for word in re.findall(r'"(\w+)"', line)}  # types that are spelled
    assert {name: line for name, line in imported.items() if name not in used | said} == {}
