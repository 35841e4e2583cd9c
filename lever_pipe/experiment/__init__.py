"""What a user configures, for both studies, and what makes the identity of each stage."""
