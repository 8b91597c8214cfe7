"""`reference` and `optimized` are two bodies of one surface."""

import inspect

import pytest

import optimized
import reference


def test_same_surface():
    assert reference.__all__ == optimized.__all__
    assert len(set(reference.__all__)) == len(reference.__all__)


def test_surface_is_what_the_packages_define():
    for package in (reference, optimized):
        defined = {name for name, value in vars(package).items() if inspect.isfunction(value)}
        assert defined == set(package.__all__), package.__name__


@pytest.mark.parametrize("name", reference.__all__)
def test_twins(name):
    twins = getattr(reference, name), getattr(optimized, name)
    assert twins[0] is not twins[1]
    assert inspect.unwrap(twins[0]).__code__ is not inspect.unwrap(twins[1]).__code__
    assert [twin.__name__ for twin in twins] == [name, name]
    modules = [twin.__module__.split(".", 1) for twin in twins]
    assert [package for package, _ in modules] == ["reference", "optimized"]
    assert modules[0][1] == modules[1][1], "twins live in files of one name"


@pytest.mark.parametrize("name", reference.__all__)
def test_signatures(name):
    ours, theirs = (
        [(p.name, p.kind, p.default) for p in inspect.signature(getattr(package, name)).parameters.values()]
        for package in (reference, optimized)
    )
    assert ours == theirs
