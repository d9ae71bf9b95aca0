"""Configs that come with rltrain: `rltrain run NAME`, and `rltrain sft NAME` for those in `sft`."""

from pathlib import Path

RECIPES = Path(__file__).resolve().parent
SFT_RECIPES = RECIPES / "sft"


def recipe_names(folder: Path = RECIPES) -> list[str]:
    """The recipes in FOLDER."""
    return sorted(path.stem for path in folder.glob("*.yaml"))
