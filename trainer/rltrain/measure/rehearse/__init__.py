"""The measuring plug-in `rehearse`: a run is killed, resumed, and compared with one that was not."""
