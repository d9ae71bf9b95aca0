"""What each topic shows of its facts: `headline`, one line, and `exhibits`, the tables that findings rest on."""
