"""From a log or traceback to its cause: what happened first, how sure that is, how to verify and how to fix it."""
