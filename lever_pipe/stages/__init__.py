"""The stages: one keyword-only function per rule, from input files to output files, with roles set by their types."""
