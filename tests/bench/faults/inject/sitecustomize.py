"""Every Python process that finds this directory on PYTHONPATH reads this first; RLTRAIN_MISTAKE names the mistake."""

import os

if os.environ.get("RLTRAIN_MISTAKE"):
    import bench_mistakes

    bench_mistakes.install(os.environ["RLTRAIN_MISTAKE"])
