"""What explains a symptom: checks of causes, whose findings come before those of their consequences."""

NUMBERS = ("RUN010",)
"""A metric that is no number: everything after it follows."""
SYNC = ("DRF001", "DRF002", "DRF003")
"""The engine samples from other weights than the actor learns with."""
DRIFT = (*SYNC, "DRF004", "DRF005", "DRF006", "DRF009")
"""What the policy learns from is not what it did."""
SIGNAL = ("RUN011", "RUN012", "RUN013", "RUN015")
"""Rewards and advantages say nothing, or the wrong thing."""
ENDINGS = ("RUN022",)
"""Answers do not end by themselves. That many reach their limit (RUN023) is often as it should be."""
STEPS = ("RUN030", "RUN031", "RUN033", "RUN036")
"""The optimizer goes too far, or the wrong way."""
WORK = ("RUN040", "RUN041")
"""Ranks that do the same work, weights that stay as they are."""
PROOFS = ("RUN057", "RUN058", "RUN059", "RUN060")
"""What the trainer measured of itself."""
ROOTS = (*NUMBERS, *PROOFS, *DRIFT, *SIGNAL, *ENDINGS, *STEPS, *WORK)
"""All of them: a reward that does not rise may come from any."""
