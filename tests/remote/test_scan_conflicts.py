"""Shared import names, shadowed modules and left-overs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.remote.trees import install, scan


def test_two_distributions_that_install_different_files(tmp_path: Path) -> None:
    """F04: opencv-python and opencv-python-headless share cv2, the later one overwrote the earlier."""
    install(
        tmp_path, "opencv-python", files={"cv2/__init__.py": "same", "cv2/cv2.abi3.so": "gui", "cv2/gapi/x.py": "1"}
    )
    install(tmp_path, "opencv-python-headless", files={"cv2/__init__.py": "same", "cv2/cv2.abi3.so": "headless"})
    assert scan(tmp_path)["owners"] == {"cv2": ["opencv-python", "opencv-python-headless"]}


def test_a_module_and_a_package_of_one_name(tmp_path: Path) -> None:
    install(tmp_path, "pynvml", "11.5", files={"pynvml/__init__.py": "old", "pynvml/nvml.py": "x"})
    install(tmp_path, "nvidia-ml-py", "13", files={"pynvml.py": "new", "example.py": "e"})
    assert scan(tmp_path)["owners"] == {"pynvml": ["nvidia-ml-py", "pynvml"]}


def test_namespace_packages_are_no_conflict(tmp_path: Path) -> None:
    install(tmp_path, "nvidia-nvtx-cu12", files={"nvidia/__init__.py": "", "nvidia/nvtx/lib/libnvtx.so.12": "a"})
    install(tmp_path, "nvidia-cublas-cu12", files={"nvidia/__init__.py": "", "nvidia/cublas/lib/libcublas.so.12": "b"})
    install(tmp_path, "nvidia-nccl-cu12", files={"nvidia/nccl/lib/libnccl.so.2": "c", "tests/test_x.py": "1"})
    assert scan(tmp_path)["owners"] == {}
    install(tmp_path, "nvidia-nccl-cu13", files={"nvidia/nccl/lib/libnccl.so.2": "d", "tests/test_x.py": "2"})
    assert scan(tmp_path)["owners"] == {"nvidia.nccl": ["nvidia-nccl-cu12", "nvidia-nccl-cu13"]}


def test_identical_files_are_no_conflict(tmp_path: Path) -> None:
    install(tmp_path, "opencv-python", files={"cv2/__init__.py": "same"})
    install(tmp_path, "opencv-contrib-python", files={"cv2/__init__.py": "same"})
    assert scan(tmp_path)["owners"] == {}


def test_a_record_that_is_not_sorted_or_not_there(tmp_path: Path) -> None:
    record = install(tmp_path, "verl", files={"verl/__init__.py": "v", "verl_extra/__init__.py": "w"})
    lines = (record / "RECORD").read_text().splitlines()
    (record / "RECORD").write_text("\r\n".join(["", *reversed(lines), ",,", "no comma", "verl-1.0.dist-info/RECORD,,"]))
    (tmp_path / "opencv_python-1.0.egg-info").mkdir()
    (tmp_path / "opencv_python-1.0.egg-info/PKG-INFO").write_text("Name: opencv-python\nVersion: 1.0\n")
    (tmp_path / "opencv_python-1.0.egg-info/top_level.txt").write_text("verl\n")
    document = scan(tmp_path)
    assert document["errors"] == {}
    assert document["owners"] == {"verl": ["opencv-python", "verl"]}


@pytest.mark.row("F04")
def test_a_checkout_on_pythonpath_shadows_the_installed_package(tmp_path: Path) -> None:
    """F04: a module that resolves outside its distribution."""
    site, checkout = tmp_path / "site-packages", tmp_path / "verl-main"
    install(site, "verl", files={"verl/__init__.py": ""})
    (checkout / "verl").mkdir(parents=True)
    assert scan(checkout, site)["shadowed"] == {}, "without __init__.py it is only a part of a namespace"
    (checkout / "verl/__init__.py").touch()
    assert scan(checkout, site)["shadowed"] == {"verl": [str(checkout / "verl"), str(site / "verl")]}
    assert scan(site, checkout)["shadowed"] == {}


def test_an_editable_install_and_what_stands_in_its_way(tmp_path: Path) -> None:
    site, source = tmp_path / "site-packages", tmp_path / "src"
    url = json.dumps({"url": f"file://{source}", "dir_info": {"editable": True}})
    install(site, "verl", direct_url__json=url)
    (source / "verl").mkdir(parents=True)
    (source / "verl/__init__.py").touch()
    assert scan(site, source)["shadowed"] == {}
    assert scan(site)["shadowed"] == {}, "an import hook leads to it"
    (site / "verl").mkdir()
    # Even an empty directory: the path finder is asked before the import hook of the editable install.
    assert scan(site)["shadowed"] == {"verl": [str(site / "verl")]}


def test_parts_of_a_namespace_package_do_not_shadow_each_other(tmp_path: Path) -> None:
    site, user = tmp_path / "site-packages", tmp_path / "user"
    install(site, "protobuf", files={"google/protobuf/__init__.py": ""})
    (user / "google/auth").mkdir(parents=True)
    assert scan(user, site)["shadowed"] == {}
    (user / "google/protobuf").mkdir()
    (user / "google/protobuf/__init__.py").touch()
    places = [str(user / "google/protobuf"), str(site / "google/protobuf")]
    assert scan(user, site)["shadowed"] == {"google.protobuf": places}
    (user / "google/__init__.py").touch()
    assert scan(user, site)["shadowed"] == {"google.protobuf": [str(user / "google")]}


def test_leftovers(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    install(site, "verl", files={"verl/__init__.py": ""})
    (site / "~orch").mkdir()
    (site / "vllm/__pycache__").mkdir(parents=True)
    (site / "pynvml-11.0.dist-info").mkdir()
    (site / "__editable__.gone-1.0.pth").write_text(f"{tmp_path}/gone\n")
    (site / "fine.pth").write_text(f"import os\n# a comment\n\n{tmp_path}\n")
    (site / "__editable___x_1_finder.py").write_text(
        f"MAPPING: dict[str, str] = {{'x': '{tmp_path}/x', 'verl': '{site}/verl'}}\nNAMESPACES = {{}}\n"
    )
    assert scan(site)["leftovers"] == [
        f"{site}/__editable__.gone-1.0.pth: points to {tmp_path}/gone, which does not exist",
        f"{site}/__editable___x_1_finder.py: maps x to {tmp_path}/x, which does not exist",
        f"{site}/~orch: half-removed package (pip renames to this while it uninstalls)",
        f"{site}/pynvml-11.0.dist-info: no readable METADATA",
        f"{site}/vllm: package directory that no installed distribution owns",
    ]


def test_a_fork_under_another_name_owns_its_package(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    install(site, "vllm-of-somebody", files={"vllm/__init__.py": ""})
    assert scan(site)["leftovers"] == []


def test_a_hostile_finder_file(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    for content in (
        "MAPPING = {1: 2}",
        "MAPPING = {" + "[" * 9999 + "}",
        "MAPPING = {'a': '\\0'}",
        "MAPPING = {{}: 1}",
    ):
        (site / "__editable___x_finder.py").write_text(content)
        document = scan(site)
        assert document["leftovers"] == []
        assert document["errors"] == {}
