"""SGLang behind the engine protocol: a server that rltrain starts, and rltrain's part that runs inside of it."""
