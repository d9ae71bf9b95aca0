"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from tests.checks.config import cases_b1, cases_b2, cases_resume

CASES = {**cases_b1.CASES, **cases_b2.CASES, **cases_resume.CASES}
OTHER_FIRES = {**cases_b1.OTHER_FIRES, **cases_resume.OTHER_FIRES, **vars(cases_b2).get("OTHER_FIRES", {})}
