"""Figures of the report: drawings of collected results; equal numbers give equal bytes."""
