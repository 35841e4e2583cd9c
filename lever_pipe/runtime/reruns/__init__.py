"""Reruns by content: compare artifacts with their manifests, give reasons for reruns, and skip finished jobs."""
