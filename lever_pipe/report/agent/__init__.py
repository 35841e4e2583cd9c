"""Study `intention` in the report: documents 003 and 004, the arms, and the effect of KL on the agent."""
