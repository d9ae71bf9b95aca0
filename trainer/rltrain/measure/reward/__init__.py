"""The measuring plug-in `reward`: a user's reward function, called on answers that are known to be right or wrong."""
