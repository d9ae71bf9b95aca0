"""Run configs of several frameworks, read into `ConfigFacts`: by `read`; `fields` speaks of their keys."""
