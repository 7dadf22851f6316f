"""Images by name and digest; building them is `tests/real`'s."""

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.images.store import ImageStore


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root/usr/bin").mkdir(parents=True)
    (tmp_path / "root/usr/bin/python3").touch()
    return tmp_path / "root"


@pytest.fixture
def store(tmp_path):
    return ImageStore(tmp_path / "images")


def test_a_folder_is_used_where_it_lies(store, root):
    image = store.add_folder("mine", root)
    assert (image.root, image.python, image.names) == (root, "/usr/bin/python3", ("mine",))


def test_one_image_may_have_several_names(store, root):
    store.add_folder("one", root)
    assert store.add_folder("two", root).names == ("one", "two")


def test_a_folder_without_python_is_refused(store, tmp_path):
    with pytest.raises(PeriodicError, match="has no Python"):
        store.add_folder("bare", tmp_path)
    assert store.all() == []


def test_an_unknown_name_is_an_error_with_the_nearest(store, root):
    store.add_folder("numeric", root)
    with pytest.raises(PeriodicError, match="numeric"):
        store.get("numerik")


@pytest.mark.parametrize("name", ["", "../up", "Upper", "a/b", ".hidden", "x" * 65])
def test_what_is_no_name_is_refused(store, root, name):
    with pytest.raises(PeriodicError, match="no name for an image"):
        store.add_folder(name, root)


def test_an_image_without_a_name_goes_with_a_pruning_and_its_folder_stays(store, root):
    store.add_folder("mine", root)
    store.remove("mine")
    assert [image.root for image in store.prune()] == [root]
    assert store.all() == [] and root.is_dir()
