"""Why a step is slow: files of any trainer, read against a floor."""
