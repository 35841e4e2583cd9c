"""Study `intention` in the report: documents 003 and 004, the arms, and what KL does to the agent."""
