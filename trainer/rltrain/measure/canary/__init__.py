"""The measuring plug-in `canary`: what a saved checkpoint would have answered a live server's questions."""
