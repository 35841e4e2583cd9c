"""Study `intention`: tasks, the environment with its simulated users, and how dialogues become tokens."""
