"""Run configs that come with rltrain: `rltrain run NAME`."""
