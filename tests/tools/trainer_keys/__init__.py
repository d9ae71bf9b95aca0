"""Tables of other trainers' keys, from their wheels or from commits of their repositories."""
