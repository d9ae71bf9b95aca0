"""The playbooks: one Markdown file with YAML front matter for each problem. Data only; rlcheck reads them."""

from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent
