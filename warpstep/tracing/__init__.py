"""Recording what a launch does, by line: every access, branch and barrier, and what is wrong with them."""
