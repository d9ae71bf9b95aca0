"""The node agent: what the doctor sends to other machines to look around there, to connect and to start ranks.

Standard library only. Its sources arrive on standard input, so nothing is installed or written where it runs.
"""
