"""Study `lever`: from questions and pools to a trained selector of demonstrations."""
