"""Sizes that keep each part readable at one sitting. When one hurts, the design shows where its seam is."""

import ast
import re

import pytest

import reference
from harness.tests.project import files, imports, text, tree

FILE_LINES, FUNCTION_LINES, KERNEL_LINES, REFERENCE_LINES, POSITIONAL = 300, 40, 90, 15, 6
COLUMNS = 120
PYTHON = files(".py")
CUDA = files(".cu", ".cuh")
PTX = [path for path in CUDA if path.parts[-3:-1] == ("device", "ptx")]
INLINE = r"\b(asm|__asm(__)?)\b"
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def functions(path):
    return [node for node in ast.walk(tree(path)) if isinstance(node, FUNCTION)]


def length(node):
    return node.end_lineno - node.lineno + 1


def uncommented(source):
    return re.sub(r"//[^\n]*", "", source)


def kernels(source):
    """(name, lines) of every __global__ function that has a body."""
    source = uncommented(source)
    for start in re.finditer(r"\b__global__\b[^{;]*{", source):
        depth = 1
        for brace in re.finditer(r"[{}]", source[start.end():]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                lines = source.count("\n", start.start(), start.end() + brace.end()) + 1
                yield re.findall(r"(\w+)\s*\(", start[0])[-1], lines
                break


@pytest.mark.parametrize("path", PYTHON + CUDA, ids=str)
def test_file(path):
    assert len(text(path).splitlines()) <= FILE_LINES


@pytest.mark.parametrize("path", PYTHON + CUDA, ids=str)
def test_columns(path):
    assert [n for n, line in enumerate(text(path).splitlines(), 1) if len(line) > COLUMNS] == []


@pytest.mark.parametrize("path", PYTHON, ids=str)
def test_python_functions(path):
    assert {node.name: length(node) for node in functions(path) if length(node) > FUNCTION_LINES} == {}


@pytest.mark.parametrize("path", CUDA, ids=str)
def test_kernels(path):
    assert {name: lines for name, lines in kernels(text(path)) if lines > KERNEL_LINES} == {}


def test_kernels_are_found():
    declared = "__global__ void declared(int);\n"
    defined = "__global__ void __launch_bounds__(N) twice(float* x) {  // {\n  if (x) { x[0] *= 2; }\n}\n"
    assert list(kernels(declared + defined)) == [("twice", 3)]


@pytest.mark.parametrize("path", files(".py", packages=("reference",)), ids=str)
def test_references_are_short(path):
    bodies = {
        node.name: node.end_lineno - node.body[1].lineno + 1
        for node in functions(path)
        if node.name in reference.__all__
    }
    assert {name: lines for name, lines in bodies.items() if lines >= REFERENCE_LINES} == {}


@pytest.mark.parametrize("path", PYTHON, ids=str)
def test_positional_parameters(path):
    def count(node):
        names = [argument.arg for argument in node.args.posonlyargs + node.args.args]
        return len(names) - (names[:1] in (["self"], ["cls"]))

    too_many = {node.name: count(node) for node in functions(path) if count(node) > POSITIONAL}
    assert {name: n for name, n in too_many.items() if name not in reference.__all__} == {}


@pytest.mark.parametrize("path", [path for path in PYTHON if "tests" not in path.parts], ids=str)
def test_documented(path):
    module = tree(path)
    defined = [node for node in module.body if isinstance(node, (*FUNCTION, ast.ClassDef))]
    assert ast.get_docstring(module), "the file says what it is"
    assert [node.name for node in defined if node.name[0] != "_" and not ast.get_docstring(node)] == []


@pytest.mark.parametrize("path", PYTHON, ids=str)
def test_no_star_import(path):
    assert [name for name in imports(path) if name.endswith("*")] == []


@pytest.mark.parametrize("path", [path for path in CUDA if path not in PTX], ids=str)
def test_asm_lives_in_ptx_headers(path):
    assert not re.search(INLINE, uncommented(text(path)))


@pytest.mark.parametrize("spelt", ["asm", "__asm__", "__asm"])
def test_every_spelling_of_asm_is_found(spelt):
    assert re.search(INLINE, f'{spelt} volatile("nop;");') and not re.search(INLINE, "plasma(asmall);")


@pytest.mark.parametrize("path", PTX, ids=str)
def test_ptx_headers_hold_no_loops(path):
    assert not re.search(r"\b(for|while|do)\b", uncommented(text(path)))
