"""What the report tells of the study of the selector."""
