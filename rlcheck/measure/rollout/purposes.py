"""The end points that a trainer needs of a server: by engine, purpose, and the paths of which one serves it.

Sources: vllm/entrypoints (serve/dev, rl/online) of 0.32, https://docs.vllm.ai/en/latest/features/sleep_mode.html;
https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/entrypoints/http_server.py
"""

from __future__ import annotations

from collections.abc import Mapping

NEEDED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "vllm": {
        "take new weights": ("/update_weights", "/init_weight_transfer_engine", "/collective_rpc"),
        "sleep": ("/sleep",),
        "wake": ("/wake_up",),
        "pause": ("/pause",),
        "forget cached prefixes": ("/reset_prefix_cache",),
    },
    "sglang": {
        "take new weights": (
            "/update_weights_from_tensor",
            "/update_weights_from_distributed",
            "/update_weights_from_disk",
        ),
        "sleep": ("/release_memory_occupation",),
        "wake": ("/resume_memory_occupation",),
        "pause": ("/pause_generation",),
        "forget cached prefixes": ("/flush_cache",),
    },
}
