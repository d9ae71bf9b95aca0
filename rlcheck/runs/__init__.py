"""Run configs of several frameworks, read into `RunFacts`: by `read`; `fields` speaks of their keys."""
