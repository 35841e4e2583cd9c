"""Study `intention`: tasks, environment, simulated users, dialogue codecs and the agent."""
