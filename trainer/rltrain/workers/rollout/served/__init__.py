"""Engines behind HTTP: what is asked of vLLM's and SGLang's servers, whoever started them."""
