"""Record a launch: every access, branch and barrier by line, and its errors."""
