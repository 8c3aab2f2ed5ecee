"""Every public name is where it is said to be."""

import importlib
import importlib.metadata

import pytest

import distrun


@pytest.mark.parametrize("name", distrun.__all__)
def test_every_public_name_resolves(name):
    assert getattr(distrun, name) is not None


def test_dir_offers_names_that_nobody_used_yet():
    assert set(distrun.__all__) <= set(dir(distrun))


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match=r"^module 'distrun' has no attribute 'all_reduce'$"):
        _ = distrun.all_reduce


def test_the_version_is_the_installed_one():
    assert importlib.metadata.version("distrun") == distrun.__version__
