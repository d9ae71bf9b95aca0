"""Checks of family HFC: the Hugging Face cache and Hub client."""
