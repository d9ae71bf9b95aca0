"""Checks of family HFC: the Hugging Face cache and Hub client."""

from rlcheck.check import checks_in
from rlcheck.checks.hfc import access, client, leftovers, location, token

CHECKS = checks_in(access, leftovers, location, token, client)
