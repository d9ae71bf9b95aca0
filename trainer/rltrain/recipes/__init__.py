"""Run configs that come with rltrain: `rltrain run NAME`."""

from pathlib import Path

RECIPES = Path(__file__).resolve().parent


def recipe_names() -> list[str]:
    """The recipes that come with rltrain."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))
