"""The scanner's list of distributions and what it reads of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rlcheck.remote.scan import metadata
from tests.remote.trees import install, scan


def rows(document: dict) -> dict[str, dict]:
    return {row["name"]: row for row in document["distributions"]}


def test_name_and_version_come_from_the_directory(tmp_path: Path) -> None:
    (tmp_path / "Some_Thing.else-1.2.post1+cu130.dist-info").mkdir()
    row = scan(tmp_path)["distributions"][0]
    assert (row["name"], row["version"], row["location"]) == ("some-thing-else", "1.2.post1+cu130", str(tmp_path))


def test_requirements_are_read_for_the_stack_and_what_it_reaches(tmp_path: Path) -> None:
    """F01: every conflict is a declared pin in the METADATA of what is installed."""
    install(tmp_path, "verl", "0.9.1", ("transformers==5.9.0", 'sglang==0.5.12 ; extra == "sglang"'), INSTALLER="uv\n")
    install(tmp_path, "transformers", "5.6.0", ("tokenizers[fast]>=0.20",))
    install(tmp_path, "tokenizers", "0.22", ('rust-thing ; extra == "fast"', 'other ; extra == "slow"'))
    install(tmp_path, "rust-thing")
    install(tmp_path, "other")
    install(tmp_path, "sglang", "0.5.12")
    found = rows(scan(tmp_path))
    assert {name for name, row in found.items() if row.get("requires_read")} == {
        "verl",
        "transformers",
        "tokenizers",
        "rust-thing",
    }
    assert found["verl"]["requires"] == ["transformers==5.9.0", 'sglang==0.5.12 ; extra == "sglang"']
    assert found["verl"]["installer"] == "uv"


def test_a_cycle_of_requirements_ends(tmp_path: Path) -> None:
    install(tmp_path, "verl", requires=("torch[all]", "verl[x]"))
    install(tmp_path, "torch", requires=("verl[y] ; extra == 'all'",))
    assert all(row["requires_read"] for row in rows(scan(tmp_path)).values())


def test_requires_python_is_read_for_everything(tmp_path: Path) -> None:
    info = tmp_path / "left_pad-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: left-pad\nVersion: 1.0\nRequires-Python: >=3.99\n\nRequires-Python: no\n")
    row = rows(scan(tmp_path))["left-pad"]
    assert row["requires_python"] == ">=3.99"
    assert not row.get("requires_read")


def test_duplicates_are_listed_in_the_order_of_the_search_path(tmp_path: Path) -> None:
    """F04: duplicate distributions."""
    install(tmp_path / "a", "torch", "2.13.0")
    install(tmp_path / "b", "torch", "2.11.0")
    found = scan(tmp_path / "b", tmp_path / "a", tmp_path / "b")["distributions"]
    assert [row["version"] for row in found] == ["2.11.0", "2.13.0"]


def test_wheel_tags_and_sources(tmp_path: Path) -> None:
    url = {"url": "https://me:secret@example.com/verl.git", "vcs_info": {"commit_id": "abc", "vcs": "git"}}
    install(
        tmp_path,
        "verl",
        WHEEL="Wheel-Version: 1.0\nTag: cp312-cp312-manylinux_2_34_x86_64\nTag: py3-none-any\n",
        direct_url__json=json.dumps(url),
    )
    row = rows(scan(tmp_path))["verl"]
    assert row["wheel_tags"] == ["cp312-cp312-manylinux_2_34_x86_64", "py3-none-any"]
    assert row["direct_url"] == "https://***@example.com/verl.git@abc"
    assert "secret" not in json.dumps(row)


def test_editable_installs(tmp_path: Path) -> None:
    source = tmp_path / "my source"
    url = {"url": f"file://{source}".replace(" ", "%20"), "dir_info": {"editable": True}}
    install(tmp_path, "verl", direct_url__json=json.dumps(url))
    (source / "vllm.egg-info").mkdir(parents=True)
    (source / "vllm.egg-info" / "PKG-INFO").write_text("Name: vllm\nVersion: 0.9\n")
    (source / "vllm.egg-info" / "requires.txt").write_text("torch==2.7.0\n\n[audio:python_version<'4']\nlibrosa\n")
    (tmp_path / "vllm.egg-link").write_text(f"{source}\n.")
    found = rows(scan(tmp_path, source))
    assert found["verl"]["editable"] == str(source)
    assert found["vllm"]["editable"] == str(source)
    assert found["vllm"]["version"] == "0.9"
    assert found["vllm"]["requires"] == ["torch==2.7.0", "librosa ; extra == \"audio\" and (python_version<'4')"]


def test_old_eggs(tmp_path: Path) -> None:
    (tmp_path / "my-pytool-1.0-py3.11.egg-info").write_text("Name: my-pytool\nVersion: 1.0\n")
    egg = tmp_path / "vllm-0.5-py3.11-linux-x86_64.egg"
    (egg / "EGG-INFO").mkdir(parents=True)
    (egg / "EGG-INFO" / "PKG-INFO").write_text("Name: vllm\nVersion: 0.5\n")
    found = rows(scan(tmp_path, egg))
    assert found["my-pytool"]["version"] == "1.0"
    assert found["vllm"]["version"] == "0.5"
    assert found["vllm"]["requires_read"]


def test_broken_records_are_named(tmp_path: Path) -> None:
    (tmp_path / "torch-2.0.dist-info").mkdir()
    install(tmp_path, "vllm")
    (tmp_path / "vllm-1.0.dist-info" / "METADATA").write_bytes(b"\xff\xfe\0garbage" * 999)
    install(tmp_path, "verl")
    (tmp_path / "verl-1.0.dist-info" / "METADATA").write_text("Name: somebody-else\nVersion: 1.0\n")
    (tmp_path / "nvidia_x.dist-info").mkdir()
    (tmp_path / "opencv_python-4.0.dist-info").mkdir()
    os.mkfifo(tmp_path / "opencv_python-4.0.dist-info" / "METADATA")
    (tmp_path / "pynvml-1.0.dist-info" / "METADATA").mkdir(parents=True)
    found = {name: row.get("broken", "") for name, row in rows(scan(tmp_path)).items()}
    assert found == {
        "torch": "no readable METADATA",
        "vllm": "METADATA has no Name and no Version",
        "verl": "METADATA names 'somebody-else'",
        "nvidia-x": "no readable METADATA",
        "opencv-python": "no readable METADATA",
        "pynvml": "no readable METADATA",
    }


def test_a_huge_metadata_file_is_read_to_its_blank_line_only(tmp_path: Path) -> None:
    info = install(tmp_path, "vllm")
    header = b"Name: vllm\r\nVersion: 1.0\r\n" + b"Classifier: x\r\n" * 6000 + b"Requires-Dist: torch (>=2)\r\n\r\n"
    (info / "METADATA").write_bytes(header + b"Requires-Dist: no\r\n" * 100_000)
    assert rows(scan(tmp_path))["vllm"]["requires"] == ["torch (>=2)"]


def test_names_that_are_no_text_do_not_break_the_document(tmp_path: Path) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/bad\xff-1.0.dist-info")
    document = scan(tmp_path)
    assert json.dumps(document, ensure_ascii=False).encode()
    assert document["errors"] == {}


def test_ten_thousand_distributions(tmp_path: Path) -> None:
    for number in range(10_000):
        (tmp_path / f"package_{number}-1.0.dist-info").mkdir()
    install(tmp_path, "verl", requires=("package-77",))
    found = rows(scan(tmp_path))
    assert len(found) == 10_001
    assert found["package-77"]["broken"] == "no readable METADATA"
    assert "broken" not in found["package-78"]


def test_parse_requirement() -> None:
    assert metadata.parse_requirement("Ray[Default, serve]>=2.5 ; python_version<'3.9'") == (
        "ray",
        ("default", "serve"),
        "",
    )
    assert metadata.parse_requirement("a.b_c @ https://x ; extra == 'Some_Thing'") == ("a-b-c", (), "some-thing")
    assert metadata.parse_requirement("???") == ("", (), "")


def test_direct_url_of_other_shapes(tmp_path: Path) -> None:
    for content in ("[]", "{}", '{"url": 1}', '{"url": "x", "vcs_info": 3}', "{", "[" * 100_000):
        path = tmp_path / "direct_url.json"
        path.write_text(content)
        assert metadata.direct_url(str(path)) in (("", ""), ("1", ""))
